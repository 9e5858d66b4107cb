package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// liteSilence is the time after the last SyncLite or receive of a consumer of lite topics after which
// its set is forgotten. Clients repeat their set every 30 s.
const liteSilence = 2 * time.Minute

// liteConsumers are the consumers of a subscription to lite topics. Subscription.mu guards all.
//
// Liveness: a receive that found no message waits in its consumer's waiters. It is woken by a message
// that can be taken from a queue of the set (Subscription.wakeLite), and by each addition to the set.
// A receive that leaves messages behind, because it has enough or fails, wakes the next one for the
// queues that it shares (wakeShared).
type liteConsumers struct {
	byID map[string]*liteConsumer
	of   map[uint16][]*liteConsumer // by queue: those that have subscribed
	ends map[string]*liteEnds       // calls of ServeLite, by the ID of the consumer
	turn int                        // which of several consumers of a queue is woken first
}

// A liteConsumer is a consumer with the lite topics to which it has subscribed.
type liteConsumer struct {
	id      string
	topics  map[uint16]*liteTopic // by queue
	readers []*queueReader        // of topics
	set     *consume.Set          // likewise
	waiters []*waiter
	heard   time.Time
}

// liteEnds are lite topics that were taken from a consumer and that its ServeLite has not reported.
type liteEnds struct {
	names  []string
	signal chan struct{} // has a value if names is not empty
	gone   chan struct{} // closed: a later ServeLite has taken its place
}

func newLiteConsumers() *liteConsumers {
	return &liteConsumers{byID: map[string]*liteConsumer{}, of: map[uint16][]*liteConsumer{}, ends: map[string]*liteEnds{}}
}

// maxLiteConsumers is the maximum of the consumers of a group that are known at the same time.
const maxLiteConsumers = 10_000

// liteConsumer returns a consumer, which was heard of now. The error is a throttle if there are too
// many. mu is held.
func (s *Subscription) liteConsumer(id string, now time.Time) (*liteConsumer, error) {
	c := s.lite.byID[id]
	if c == nil {
		if len(s.lite.byID) >= maxLiteConsumers {
			return nil, refusal.New(tidegate.CodeTooManyRequests, s.Group().Name(),
				"the group has %d consumers of lite topics, which is the limit; use fewer, and the same ID for all calls of one", maxLiteConsumers)
		}
		c = &liteConsumer{id: id, topics: map[uint16]*liteTopic{}, set: s.progress.NewSet(nil)}
		s.lite.byID[id] = c
	}
	c.heard = now
	return c, nil
}

// extendFor is extend for the queues of a receive, which it also sets. The result is the consumer of a
// receive from lite topics, and nil for another one. mu is held.
func (s *Subscription) extendFor(p *Request, r *consume.Receive, now time.Time) (*liteConsumer, error) {
	if s.lite == nil {
		s.extend()
		return nil, nil //nolint:nilnil // the usual case
	}
	c, err := s.liteConsumer(p.LiteConsumer, now)
	if err != nil {
		return nil, err
	}
	for _, r := range c.readers {
		s.progress.Extend(int(r.queue.Number()), r.queue.End())
	}
	r.Set = c.set
	return c, nil
}

// changeLite replaces the lite topics of a consumer. It returns those that it had and has no more.
// mu is held.
func (s *Subscription) changeLite(c *liteConsumer, topics map[uint16]*liteTopic) (ended []*liteTopic) {
	for q, lt := range c.topics {
		if topics[q] == nil {
			ended = append(ended, lt)
			if rest := slices.DeleteFunc(s.lite.of[q], func(o *liteConsumer) bool { return o == c }); len(rest) > 0 {
				s.lite.of[q] = rest
			} else {
				delete(s.lite.of, q)
			}
		}
	}
	added := false
	for q := range topics {
		if c.topics[q] == nil {
			added = true
			s.lite.of[q] = append(s.lite.of[q], c)
		}
	}
	if !added && len(ended) == 0 {
		return nil
	}
	c.topics = topics
	queues := slices.Sorted(maps.Keys(topics))
	s.addQueuesLocked()
	c.set, c.readers = s.progress.NewSet(queues), make([]*queueReader, len(queues))
	for i, q := range queues {
		c.readers[i] = s.readers[q]
	}
	if added {
		s.wakeWaiters(c)
	}
	return ended
}

// wakeWaiters ends the wait of all receives of a consumer. mu is held.
func (s *Subscription) wakeWaiters(c *liteConsumer) {
	for _, w := range c.waiters {
		close(w.woken)
	}
	c.waiters = nil
}

// wakeLite ends the wait of a receive for a queue from which a message can be taken. mu is held.
func (s *Subscription) wakeLite(queue uint16) {
	cs := s.lite.of[queue]
	if len(cs) == 0 || int(queue) >= len(s.readers) {
		return
	}
	s.progress.Extend(int(queue), s.readers[queue].queue.End())
	if s.progress.Available(int(queue)) == 0 {
		return
	}
	s.lite.turn++
	for i := range cs {
		c := cs[(s.lite.turn+i)%len(cs)]
		if len(c.waiters) == 0 {
			continue
		}
		close(c.waiters[0].woken)
		c.waiters = c.waiters[1:]
		return
	}
}

// wakeShared wakes other receives for the messages that a receive of a consumer has left behind. mu
// is held.
func (s *Subscription) wakeShared(c *liteConsumer) {
	for q := range c.topics {
		if len(s.lite.of[q]) > 1 || len(c.waiters) > 0 {
			s.wakeLite(q)
		}
	}
}

// endConsumer forgets a consumer, and returns its lite topics. mu is held.
func (s *Subscription) endConsumer(c *liteConsumer) []*liteTopic {
	ended := s.changeLite(c, map[uint16]*liteTopic{})
	s.wakeWaiters(c)
	delete(s.lite.byID, c.id)
	return ended
}

// forgetConsumers forgets the consumers that it has not heard of for liteSilence. It returns the
// number of the others.
func (s *Subscription) forgetConsumers(now time.Time) (rest int) {
	var ended []*liteTopic
	s.mu.Lock()
	for _, c := range s.lite.byID {
		if len(c.waiters) == 0 && now.Sub(c.heard) >= liteSilence {
			ended = append(ended, s.endConsumer(c)...)
		}
	}
	rest = len(s.lite.byID)
	s.mu.Unlock()
	s.Topic().unpinLite(ended, now)
	return rest
}

// endLite takes a lite topic from all consumers, and reports it to them.
func (s *Subscription) endLite(name string) {
	if s.lite == nil {
		return
	}
	var ended []*liteTopic
	s.mu.Lock()
	for _, c := range s.lite.byID {
		for _, lt := range c.topics {
			if lt.name == name {
				ended = append(ended, s.takeAway(c, lt)...)
			}
		}
	}
	s.mu.Unlock()
	s.Topic().unpinLite(ended, time.Now())
}

// takeAway takes a lite topic from a consumer, and reports it. mu is held.
func (s *Subscription) takeAway(c *liteConsumer, lt *liteTopic) []*liteTopic {
	rest := maps.Clone(c.topics)
	delete(rest, lt.queue)
	if e := s.lite.ends[c.id]; e != nil {
		e.names = append(e.names, lt.name)
		select {
		case e.signal <- struct{}{}:
		default: // it has a value
		}
	}
	return s.changeLite(c, rest)
}

// describeLite returns the consumption of a lite topic.
func (s *Subscription) describeLite(q *Queue) status.LiteTopicGroup {
	out := status.LiteTopicGroup{Group: s.Group().Name()}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int(q.Number())
	if n < s.progress.Queues() {
		out.Backlog = max(q.End()-s.progress.Cursor(n).Next, 0) + s.progress.Unfinished(n)
	} else {
		out.Backlog = q.End() - q.Low().Offset
	}
	if s.lite != nil {
		for _, c := range s.lite.of[q.Number()] {
			out.Consumers = append(out.Consumers, c.id)
		}
		slices.Sort(out.Consumers)
	}
	return out
}

// SyncLite executes the method of broker.Broker.
func (e *Engine) SyncLite(ctx context.Context, r transport.LiteSync) error {
	return refusal.WithOp("SyncLite", e.syncLite(ctx, r))
}

func (e *Engine) syncLite(ctx context.Context, r transport.LiteSync) error {
	if !e.calls.Begin() {
		return refusal.Closed()
	}
	defer e.calls.End()
	if err := checkLiteSync(&r); err != nil {
		return err
	}
	s, err := e.liteSubscription(ctx, r.LiteConsumer)
	if err != nil {
		return err
	}
	defer e.lites.Wake(s.Topic())
	return s.syncLite(ctx, &r)
}

// maxLiteID is the maximum length of the ID of a consumer of lite topics in bytes.
const maxLiteID = 255

// checkLiteSync returns the error of an invalid change. It sorts the names, and drops repeated ones.
func checkLiteSync(r *transport.LiteSync) error {
	if err := checkLiteConsumer(r.LiteConsumer); err != nil {
		return err
	}
	if r.Action < transport.LiteSet || r.Action > transport.LiteRemove {
		return refusal.New(tidegate.CodeBadRequest, "action", "it is %d; give set (0), add (1) or remove (2)", r.Action)
	}
	if err := r.Start.Validate(); err != nil {
		return err
	}
	if r.Action == transport.LiteRemove && r.Start != (transport.LiteStart{}) {
		return refusal.New(tidegate.CodeBadRequest, "start", "it is set, and lite topics are removed; leave it out")
	}
	r.Topics = slices.Compact(slices.Sorted(slices.Values(r.Topics)))
	for _, name := range r.Topics {
		if err := tidegate.ValidateLiteTopic(name); err != nil {
			return err
		}
	}
	return nil
}

func checkLiteConsumer(c transport.LiteConsumer) error {
	if err := tidegate.ValidateGroup(c.Group); err != nil {
		return err
	}
	if strings.TrimSpace(c.ID) == "" || len(c.ID) > maxLiteID {
		return refusal.New(tidegate.CodeBadRequest, "consumer", "its ID has %d bytes; give 1 to %d", len(c.ID), maxLiteID)
	}
	return nil
}

// liteSubscription returns the subscription of a group to the parent of lite topics. It creates the
// subscription, and the group bound to the parent.
func (e *Engine) liteSubscription(ctx context.Context, c transport.LiteConsumer) (*Subscription, error) {
	if _, err := e.liteParent(c.Topic); err != nil {
		return nil, err
	}
	if _, err := e.catalog.EnsureLiteGroup(ctx, c.Group, c.Topic); err != nil {
		return nil, err
	}
	return e.catalog.Subscribe(ctx, c.Group, c.Topic)
}

// EnsureLiteGroup is EnsureGroup for a group that consumes the lite topics of a topic.
func (c *Catalog) EnsureLiteGroup(ctx context.Context, name, topic string) (*Group, error) {
	return c.groupOr(ctx, name, func() (*Group, error) {
		return c.putGroupLocked(name, settings.Group{FIFO: true, Lite: settings.LiteGroup{Topic: topic}}, true)
	})
}

// checkBinding returns an error if a group cannot receive from a topic, because one of them has lite
// topics and is not bound to the other.
func checkBinding(g *Group, t *Topic) error {
	bound := g.Settings().Lite.Topic
	switch {
	case bound == "" && t.lite():
		return refusal.New(tidegate.CodeBadRequest, g.Name(), "topic %q has lite topics, and the group is not bound to it; set lite.topic (and fifo) of the group, or use a new group", t.Name())
	case bound != "" && bound != t.Name():
		return refusal.New(tidegate.CodeBadRequest, g.Name(), "the group consumes the lite topics of %q (lite.topic) and cannot receive from topic %q; use another group", bound, t.Name())
	}
	return nil
}

// syncLite changes the lite topics of a consumer.
func (s *Subscription) syncLite(ctx context.Context, r *transport.LiteSync) error {
	t, now := s.Topic(), time.Now()
	if r.Action == transport.LiteRemove {
		return s.applyLite(r, nil, now)
	}
	pinned, err := t.pinLite(r.Topics, now)
	if err != nil {
		return err
	}
	if r.Start != (transport.LiteStart{}) {
		if err := s.startLite(ctx, r, pinned); err != nil {
			t.unpinLite(pinned, now)
			return err
		}
	}
	return s.applyLite(r, pinned, now)
}

// applyLite applies a change, for which pinned has the lite topics that are set or added.
func (s *Subscription) applyLite(r *transport.LiteSync, pinned []*liteTopic, now time.Time) error {
	ended, err := s.applyLiteLocked(r, pinned, now)
	s.Topic().unpinLite(ended, now)
	return err
}

// applyLiteLocked returns the lite topics to unpin.
func (s *Subscription) applyLiteLocked(r *transport.LiteSync, pinned []*liteTopic, now time.Time) (ended []*liteTopic, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return pinned, s.gone
	}
	c, err := s.liteConsumer(r.ID, now)
	if err != nil {
		return pinned, err
	}
	topics := map[uint16]*liteTopic{}
	if r.Action != transport.LiteSet {
		maps.Copy(topics, c.topics)
	}
	if r.Action == transport.LiteRemove {
		maps.DeleteFunc(topics, func(_ uint16, lt *liteTopic) bool { return slices.Contains(r.Topics, lt.name) })
	}
	for _, lt := range pinned {
		topics[lt.queue] = lt
		if c.topics[lt.queue] != nil { // it has a pin already
			ended = append(ended, lt)
		}
	}
	most := s.Group().Settings().Lite.WithDefaults().MaxTopics
	if len(topics) > most && len(topics) > len(c.topics) {
		return pinned, refusal.New(protocol.CodeLiteSubscriptionQuotaExceeded, s.Group().Name(),
			"the consumer would have %d lite topics, and the limit is %d; unsubscribe from some, use a further consumer, or raise lite.max_topics of the group", len(topics), most)
	}
	if s.Group().Settings().Lite.Exclusive {
		for _, lt := range pinned {
			for _, other := range slices.Clone(s.lite.of[lt.queue]) {
				if other != c {
					ended = append(ended, s.takeAway(other, lt)...)
				}
			}
		}
	}
	return append(ended, s.changeLite(c, topics)...), nil
}

// startLite moves the group to a position in the lite topics that the consumer does not have yet.
func (s *Subscription) startLite(ctx context.Context, r *transport.LiteSync, pinned []*liteTopic) error {
	had := s.liteTopicsOf(r.ID)
	at := map[int]int64{}
	for _, lt := range pinned {
		if had[lt.queue] {
			continue
		}
		q := s.Topic().Queues()[lt.queue]
		offset, err := s.liteOffset(q, &r.Start)
		if err != nil {
			return refusal.Store(err)
		}
		at[int(lt.queue)] = offset
	}
	if len(at) == 0 {
		return nil
	}
	_, write, err := s.Rewind(ctx, Position{Offsets: at})
	if err != nil {
		return err
	}
	if err := write.WaitContext(ctx); err != nil {
		return refusal.StoreUnless(ctx, err)
	}
	return nil
}

func (s *Subscription) liteTopicsOf(id string) map[uint16]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := map[uint16]bool{}
	if c := s.lite.byID[id]; c != nil {
		for q := range c.topics {
			had[q] = true
		}
	}
	return had
}

// liteOffset returns the offset of a position in a queue.
func (s *Subscription) liteOffset(q *Queue, p *transport.LiteStart) (int64, error) {
	low, end := q.Low().Offset, q.End()
	switch {
	case p.Newest:
		return end, nil
	case p.Last > 0:
		return max(low, end-p.Last), nil
	case p.Offset > 0:
		return min(max(low, p.Offset), end), nil
	case !p.Time.IsZero():
		within := store.Range{Topic: s.Topic().ID(), Queue: q.Number(), From: low, To: end}
		return s.env.Store.FirstThat(within, func(m store.Stored) bool { return !m.At.Before(p.Time) })
	}
	return low, nil
}

// ServeLite executes the method of broker.Broker.
func (e *Engine) ServeLite(ctx context.Context, c transport.LiteConsumer, ended func(liteTopic string)) error {
	return refusal.WithOp("ServeLite", e.serveLite(ctx, c, ended))
}

func (e *Engine) serveLite(ctx context.Context, c transport.LiteConsumer, ended func(liteTopic string)) error {
	if err := checkLiteConsumer(c); err != nil {
		return err
	}
	s, err := e.liteSubscription(ctx, c)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil // the caller has ended it
		}
		return err
	}
	ends := s.serveLite(c.ID)
	defer s.endServeLite(c.ID, ends)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.calls.life.Done():
			return refusal.Closed()
		case <-ends.gone:
			return refusal.New(tidegate.CodeBadRequest, c.ID, "another call serves the consumer now; give each consumer its own ID")
		case <-ends.signal:
			for _, name := range s.takeEnds(ends) {
				ended(name)
			}
		}
	}
}

func (s *Subscription) serveLite(id string) *liteEnds {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.lite.ends[id]; before != nil {
		close(before.gone)
	}
	e := &liteEnds{signal: make(chan struct{}, 1), gone: make(chan struct{})}
	s.lite.ends[id] = e
	return e
}

func (s *Subscription) endServeLite(id string, e *liteEnds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lite.ends[id] == e {
		delete(s.lite.ends, id)
	}
}

func (s *Subscription) takeEnds(e *liteEnds) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, e.names = e.names, nil
	return names
}

// EndLite forgets a consumer of lite topics, because it has ended. A consumer that is not known is no
// error.
func (e *Engine) EndLite(c transport.LiteConsumer) {
	t, g := e.catalog.FindTopic(c.Topic), e.catalog.FindGroup(c.Group)
	if t == nil || g == nil {
		return
	}
	s := e.catalog.Find(g.ID(), t.ID())
	if s == nil || s.lite == nil {
		return
	}
	var ended []*liteTopic
	s.mu.Lock()
	if lc := s.lite.byID[c.ID]; lc != nil {
		ended = s.endConsumer(lc)
	}
	s.mu.Unlock()
	t.unpinLite(ended, time.Now())
}

// closeLite ends all consumers, because the subscription is deleted. mu is held.
func (s *Subscription) closeLite() (ended []*liteTopic) {
	for _, c := range s.lite.byID {
		ended = append(ended, s.endConsumer(c)...)
	}
	return ended
}
