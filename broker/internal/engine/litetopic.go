package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A liteTable has the lite topics of a topic of the type LITE. Each has a queue of the topic. A
// removed lite topic leaves its queue, whose offsets go on, to a later one.
//
// Liveness: the task of LiteTopics looks at the table at intervals while it has lite topics, and
// purges the queues in left. Nothing waits for that: without a free queue the topic gets further ones.
type liteTable struct {
	mu     sync.Mutex // no other lock is acquired under it
	byName map[string]*liteTopic
	free   []uint16 // queues without a lite topic and without messages
	left   []uint16 // queues without a lite topic whose messages are to be removed
}

// A liteTopic is one lite topic. Its fields are guarded by liteTable.mu, except for those that never
// change.
type liteTopic struct {
	name        string // never changes
	queue       uint16 // never changes
	used        int64  // when the last message was sent or the last subscription ended, in nanoseconds since 1970
	subscribers int32  // consumers of all groups that have subscribed
	stored      bool   // the record is written
}

// growLite is how many queues are added at a time at least, because the list of queues is copied.
const growLite = 64

// lite reports whether each queue has the messages of a lite topic.
func (t *Topic) lite() bool { return t.lites != nil }

// takeLite returns the lite topic of a name, and creates it if there is none. It does not check the
// maximum.
func (t *Topic) takeLite(name string, now time.Time) *liteTopic {
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	return t.takeLiteLocked(name, now)
}

// takeLiteLocked is takeLite with the lock of the table.
func (t *Topic) takeLiteLocked(name string, now time.Time) *liteTopic {
	l := t.lites
	lt := l.byName[name]
	if lt != nil {
		return lt
	}
	if len(l.free) == 0 {
		from := len(t.Queues())
		t.Grow(min(from+max(growLite, from/16), math.MaxUint16+1))
		for n := len(t.Queues()) - 1; n >= from; n-- {
			l.free = append(l.free, uint16(n)) //nolint:gosec // at most MaxUint16
		}
	}
	last := len(l.free) - 1
	lt = &liteTopic{name: name, queue: l.free[last], used: now.UnixNano()}
	l.free = l.free[:last]
	l.byName[name] = lt
	return lt
}

// liteName returns the name of the lite topic for a message. A dead letter without one is possible.
func liteName(m *tidegate.Message) string { return cmp.Or(m.LiteTopic, "dead-letters") }

// liteQueue returns the queue of the lite topic of a message.
func (t *Topic) liteQueue(m *tidegate.Message) *Queue {
	lt := t.takeLite(liteName(m), time.Now()) // which may add queues
	return t.Queues()[lt.queue]
}

// storeLite writes the record of the lite topic of a message, unless it is written. Only called
// within the message log's Add, before the message is put into the queue.
func (t *Topic) storeLite(w *store.Batch, name string, now time.Time) {
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	lt := t.takeLiteLocked(name, now)
	lt.used = now.UnixNano()
	if !lt.stored {
		lt.stored = true
		w.PutLite(t.ID(), lt.queue, name)
	}
}

// admitsLite returns an error if a lite topic would exceed the maximum of the topic.
func (t *Topic) admitsLite(name string) error {
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	if t.lites.byName[name] != nil {
		return nil
	}
	return t.roomForLite(1)
}

// roomForLite returns an error if n more lite topics exceed the maximum of the topic. The lock of the
// table is held.
func (t *Topic) roomForLite(n int) error {
	most := t.Settings().Lite.WithDefaults().MaxTopics
	if len(t.lites.byName)+n <= most {
		return nil
	}
	return refusal.New(protocol.CodeLiteTopicQuotaExceeded, t.Name(), "the topic has %d lite topics, and the limit is %d; use fewer, or raise lite.max_topics of the topic",
		len(t.lites.byName), most)
}

// pinLite subscribes to lite topics, and creates those that do not exist. They are not removed
// before unpinLite. With an error it subscribes to none.
func (t *Topic) pinLite(names []string, now time.Time) ([]*liteTopic, error) {
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	created := 0
	for _, name := range names {
		if t.lites.byName[name] == nil {
			created++
		}
	}
	if created > 0 {
		if err := t.roomForLite(created); err != nil {
			return nil, err
		}
	}
	pinned := make([]*liteTopic, len(names))
	for i, name := range names {
		pinned[i] = t.takeLiteLocked(name, now)
		pinned[i].subscribers++
	}
	return pinned, nil
}

// unpinLite ends subscriptions.
func (t *Topic) unpinLite(lts []*liteTopic, now time.Time) {
	if len(lts) == 0 {
		return
	}
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	for _, lt := range lts {
		lt.subscribers--
		lt.used = now.UnixNano()
	}
}

// removeLite removes lite topics that are over, as many as most, and leaves their queues to be
// purged. Only called within the message log's Add. It returns the number of those removed and of
// those that exist afterwards.
func (t *Topic) removeLite(w *store.Batch, over func(*liteTopic) bool, most int) (removed, rest int) {
	l := t.lites
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.left) >= removedAtOnce { // these first: the number of queues is bounded
		most = 0
	}
	for name, lt := range l.byName {
		if removed == most {
			break
		}
		if lt.subscribers > 0 || !over(lt) {
			continue
		}
		removed++
		delete(l.byName, name)
		l.left = append(l.left, lt.queue)
		if lt.stored {
			w.PutLite(t.ID(), lt.queue, "")
		}
	}
	return removed, len(l.byName)
}

// leftLite returns the queues to be purged, as many as most.
func (t *Topic) leftLite(most int) []uint16 {
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	return slices.Clone(t.lites.left[:min(most, len(t.lites.left))])
}

// freeLite makes purged queues, the first ones of leftLite, available.
func (t *Topic) freeLite(queues []uint16) {
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	t.lites.left = t.lites.left[len(queues):]
	t.lites.free = append(t.lites.free, queues...)
}

// restoreLite restores the lite topics from their records, with the queues. Nothing else runs yet.
func (t *Topic) restoreLite(st *store.Store, now time.Time) error {
	queues := len(t.Queues())
	err := st.LiteTopics(t.ID(), func(queue uint16, name string) error {
		queues = max(queues, int(queue)+1)
		if name != "" {
			t.lites.byName[name] = &liteTopic{name: name, queue: queue, used: now.UnixNano(), stored: true}
		}
		return nil
	})
	t.Grow(queues)
	return err
}

// sortLite divides the queues without a lite topic into free ones and those with messages, after
// Restore. Nothing else runs yet.
func (t *Topic) sortLite() {
	l := t.lites
	taken := make(map[uint16]bool, len(l.byName))
	for _, lt := range l.byName {
		taken[lt.queue] = true
	}
	l.free = nil
	for _, q := range slices.Backward(t.Queues()) {
		switch {
		case taken[q.Number()]:
		case q.End() > q.Low().Offset:
			l.left = append(l.left, q.Number())
		default:
			l.free = append(l.free, q.Number())
		}
	}
}

// LiteTopics removes the lite topics whose time is over, and forgets consumers that are gone. Several
// goroutines can call its methods at the same time.
type LiteTopics struct {
	catalog *Catalog
	remover *Remover
	task    *Task
}

// The bounds of the looks of LiteTopics.
const (
	maxLitePause  = 30 * time.Second
	minLitePause  = 10 * time.Millisecond
	removedAtOnce = 256 // lite topics
)

// NewLiteTopics adds its task to the loop.
func NewLiteTopics(loop *maintenance, c *Catalog, r *Remover) *LiteTopics {
	l := &LiteTopics{catalog: c, remover: r}
	l.task = loop.Add(taskConfig{Step: l.look, Failed: "lite topics not removed", Pause: time.Second, MaxPause: time.Minute})
	return l
}

// Wake makes sure that a look follows, because a topic has a lite topic or a consumer.
func (l *LiteTopics) Wake(t *Topic) { l.task.Wake(time.Now().Add(litePause(t))) }

// WakeAll is Wake for all topics with lite topics. It runs once, after the start.
func (l *LiteTopics) WakeAll() {
	topics, _ := l.catalog.All()
	for _, t := range topics {
		if t.lite() {
			l.Wake(t)
		}
	}
}

// litePause is the time between two looks at a topic: 1/64 of the time after which a lite topic is
// removed, within bounds.
func litePause(t *Topic) time.Duration {
	expiry := time.Duration(t.Settings().Lite.WithDefaults().Expiry)
	if expiry <= 0 {
		return maxLitePause
	}
	return min(max(expiry/64, minLitePause), maxLitePause)
}

// look looks at all topics, and removes a bounded number of lite topics of each.
func (l *LiteTopics) look(ctx context.Context, now time.Time) (next time.Time, err error) {
	topics, subs := l.catalog.All()
	consumers := map[*Topic]bool{}
	for _, s := range subs {
		if s.lite != nil && s.forgetConsumers(now) > 0 {
			consumers[s.Topic()] = true
		}
	}
	var errs []error
	for _, t := range topics {
		if !t.lite() || t.Deleted() {
			continue
		}
		rest, again, err := l.lookAt(ctx, t, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("topic %q: %w", t.Name(), err))
		}
		due := now.Add(litePause(t))
		if again {
			due = now
		}
		if (again || rest > 0 || consumers[t]) && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	if err := errors.Join(errs...); err != nil {
		return time.Time{}, err
	}
	return next, nil
}

// lookAt removes lite topics of a topic. It returns the number of those left, and whether more are
// to be removed at once.
func (l *LiteTopics) lookAt(ctx context.Context, t *Topic, now time.Time) (rest int, again bool, err error) {
	expiry := time.Duration(t.Settings().Lite.WithDefaults().Expiry)
	over := func(lt *liteTopic) bool { return expiry > 0 && now.UnixNano()-lt.used >= int64(expiry) }
	removed, rest, err := l.remove(t, over, removedAtOnce)
	if err != nil {
		return rest, false, err
	}
	lost, left, err := l.purge(ctx, t)
	if removed > 0 && err == nil {
		level := l.remover.Logger.Info
		if lost > 0 {
			level = l.remover.Logger.Warn
		}
		level("lite topics removed, because they were not used", "topic", t.Name(), "lite_topics", removed, "unconsumed_messages", lost)
	}
	return rest, removed == removedAtOnce || left, err
}

// remove removes lite topics. Their queues are purged later.
func (l *LiteTopics) remove(t *Topic, over func(*liteTopic) bool, most int) (removed, rest int, err error) {
	err = l.remover.Store.Messages.Add(func(w *store.Batch) {
		if !t.Deleted() {
			removed, rest = t.removeLite(w, over, most)
		}
	}, nil).Wait()
	return removed, rest, err
}

// purge removes the messages of removed lite topics, at most removedAtOnce. It returns the number of
// messages that a group had not consumed, and whether more lite topics are left.
func (l *LiteTopics) purge(ctx context.Context, t *Topic) (lost int64, left bool, err error) {
	queues := t.leftLite(removedAtOnce)
	if len(queues) == 0 {
		return 0, false, nil
	}
	if lost, err = l.remover.PurgeQueues(ctx, t, queues); err != nil {
		return lost, false, err
	}
	t.freeLite(queues)
	return lost, len(t.leftLite(1)) > 0, nil
}

// LiteTopics executes the method of broker.Broker.
func (e *Engine) LiteTopics(topic string, q status.LiteTopicQuery) (page status.LiteTopicPage, err error) {
	page, err = e.liteTopics(topic, q)
	return page, refusal.WithOp("LiteTopics", err)
}

// The bound and the default of the lite topics of a page.
const (
	maxLitePage     = 1000
	defaultLitePage = 100
)

func (e *Engine) liteTopics(topic string, q status.LiteTopicQuery) (page status.LiteTopicPage, err error) {
	t, err := e.liteParent(topic)
	if err != nil {
		return page, err
	}
	if q.Limit < 0 || q.Limit > maxLitePage {
		return page, refusal.New(tidegate.CodeBadRequest, "limit", "it is %d; give 1 to %d, or 0 for %d", q.Limit, maxLitePage, defaultLitePage)
	}
	if q.Limit == 0 {
		q.Limit = defaultLitePage
	}
	page.LiteTopics = []status.LiteTopic{}
	found, total := t.listLite(q.After)
	page.Total, page.More = total, len(found) > q.Limit
	subs := slices.Clone(t.Subscriptions())
	slices.SortFunc(subs, func(x, y TopicSubscription) int {
		return strings.Compare(x.Consumed().Group().Name(), y.Consumed().Group().Name())
	})
	for _, lt := range found[:min(len(found), q.Limit)] {
		queue := t.Queues()[lt.queue]
		out := status.LiteTopic{
			Name: lt.name, Queue: int(lt.queue), UsedAt: time.Unix(0, lt.used), Messages: queue.End() - queue.Low().Offset - queue.Gaps().Messages,
		}
		for _, s := range subs {
			if s := e.catalog.Find(s.Consumed().Group().ID(), t.ID()); s != nil {
				out.Groups = append(out.Groups, s.describeLite(queue))
			}
		}
		page.LiteTopics = append(page.LiteTopics, out)
	}
	return page, nil
}

// listLite returns copies of the lite topics after a name, by name, and the number of all.
func (t *Topic) listLite(after string) (found []liteTopic, total int) {
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	for name, lt := range t.lites.byName {
		if name > after {
			found = append(found, *lt)
		}
	}
	slices.SortFunc(found, func(x, y liteTopic) int { return strings.Compare(x.name, y.name) })
	return found, len(t.lites.byName)
}

// countLite returns the number of lite topics.
func (t *Topic) countLite() int {
	if !t.lite() {
		return 0
	}
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	return len(t.lites.byName)
}

// findLite returns the queue of a lite topic.
func (t *Topic) findLite(name string) (queue *Queue, err error) {
	t.lites.mu.Lock()
	defer t.lites.mu.Unlock()
	lt := t.lites.byName[name]
	if lt == nil {
		return nil, noLiteTopic(t, name)
	}
	return t.Queues()[lt.queue], nil
}

func noLiteTopic(t *Topic, name string) error {
	return refusal.New(tidegate.CodeNotFound, name, "topic %q has no lite topic %.64q; its first message creates it, and it is removed when it was not used for %v",
		t.Name(), name, t.Settings().Lite.WithDefaults().Expiry)
}

// liteParent returns a topic of the type LITE.
func (e *Engine) liteParent(name string) (*Topic, error) {
	t, err := e.catalog.Topic(name)
	if err != nil {
		return nil, err
	}
	if !t.lite() {
		return nil, refusal.New(tidegate.CodeBadRequest, name, "the topic's type is %s, and only topics of the type %s have lite topics", t.Settings().Type, settings.TopicLite)
	}
	return t, nil
}

// DeleteLiteTopic executes the method of broker.Broker.
func (e *Engine) DeleteLiteTopic(ctx context.Context, topic, name string) error {
	return refusal.WithOp("DeleteLiteTopic", e.deleteLiteTopic(ctx, topic, name))
}

func (e *Engine) deleteLiteTopic(ctx context.Context, topic, name string) error {
	if !e.calls.Begin() {
		return refusal.Closed()
	}
	defer e.calls.End()
	t, err := e.liteParent(topic)
	if err != nil {
		return err
	}
	if _, err := t.findLite(name); err != nil {
		return err
	}
	for _, s := range t.Subscriptions() {
		if s := e.catalog.Find(s.Consumed().Group().ID(), t.ID()); s != nil {
			s.endLite(name)
		}
	}
	release, err := e.lites.task.Hold(ctx) // one call purges
	if err != nil {
		return err
	}
	defer release()
	removed, _, err := e.lites.remove(t, func(lt *liteTopic) bool { return lt.name == name }, 1)
	if err != nil {
		return refusal.Store(err)
	}
	if removed == 0 {
		return refusal.New(tidegate.CodeBadRequest, name, "a consumer has just subscribed to the lite topic again; stop it first")
	}
	if _, _, err := e.lites.purge(ctx, t); err != nil {
		e.lites.Wake(t) // purges the rest
		return refusal.StoreUnless(ctx, err)
	}
	return nil
}
