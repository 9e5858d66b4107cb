package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/address"
	"github.com/tidegate/tidegate/transport"
)

// revised are the settings that have a revision.
type revised interface {
	settings.Topic | settings.Group | settings.Address | settings.Limits
}

// revisionOf returns a text that is equal for equal settings, also after a restart, and "" for nil.
func revisionOf[S revised](s *S) string {
	if s == nil {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil { // only a programming mistake; conditions then fail
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// onRevision converts a condition on a revision to one on settings.
func onRevision[S revised](may func(revision string) error) func(now *S) error {
	if may == nil {
		return nil
	}
	return func(now *S) error { return may(revisionOf(now)) }
}

// describeOne is describe with the revision, which costs too much for lists.
func (e *Engine) describeOne(t *Topic) status.Topic {
	d := e.describe(t)
	d.Revision = revisionOf(&d.Topic)
	return d
}

// describeOneGroup is describeOne for a group.
func (e *Engine) describeOneGroup(g *Group) status.Group {
	d := e.describeGroup(g, new(int64(MaxLook)))
	d.Revision = revisionOf(&d.Group)
	return d
}

// The changes of settings have a condition may: it is called with the revision of the settings, ""
// if there are none, while no other change of settings is under way, and must not wait. If it
// returns an error, the change returns that and changes nothing. Nil means that there is no
// condition. Removals and patches of what does not exist fail without a call of may.

// PutTopic executes the method of broker.Broker, on a condition.
func (e *Engine) PutTopic(ctx context.Context, name string, c settings.Topic, may func(revision string) error) (status.Topic, error) {
	t, err := e.catalog.PutTopic(ctx, name, c, onRevision[settings.Topic](may))
	if err != nil {
		return status.Topic{}, err
	}
	return e.describeOne(t), nil
}

// DeleteTopic executes the method of broker.Broker, on a condition.
func (e *Engine) DeleteTopic(ctx context.Context, name string, may func(revision string) error) error {
	return e.catalog.DeleteTopic(ctx, name, onRevision[settings.Topic](may))
}

// PutGroup executes the method of broker.Broker, on a condition.
func (e *Engine) PutGroup(ctx context.Context, name string, c settings.Group, may func(revision string) error) (status.Group, error) {
	g, err := e.catalog.PutGroup(ctx, name, c, onRevision[settings.Group](may))
	if err != nil {
		return status.Group{}, err
	}
	return e.describeOneGroup(g), nil
}

// PatchGroup executes the method of broker.Broker, on a condition that holds before change is
// called.
func (e *Engine) PatchGroup(ctx context.Context, name string, change func(*settings.Group) error, may func(revision string) error) (status.Group, error) {
	g, err := e.catalog.PatchGroup(ctx, name, conditional(change, may))
	if err != nil {
		return status.Group{}, err
	}
	return e.describeOneGroup(g), nil
}

// DeleteGroup executes the method of broker.Broker, on a condition.
func (e *Engine) DeleteGroup(ctx context.Context, name string, may func(revision string) error) error {
	return e.catalog.DeleteGroup(ctx, name, onRevision[settings.Group](may))
}

// PutAddressSettings executes the method of broker.Broker, on a condition.
func (e *Engine) PutAddressSettings(ctx context.Context, match string, s settings.Address, may func(revision string) error) (status.Address, error) {
	if err := e.catalog.PutAddress(ctx, match, s, onRevision[settings.Address](may)); err != nil {
		return status.Address{}, err
	}
	return status.Address{Match: match, Address: s, Revision: revisionOf(&s)}, nil
}

// DeleteAddressSettings executes the method of broker.Broker, on a condition.
func (e *Engine) DeleteAddressSettings(ctx context.Context, match string, may func(revision string) error) error {
	return e.catalog.DeleteAddress(ctx, match, onRevision[settings.Address](may))
}

// PatchLimits executes the method of broker.Broker, on a condition that holds before change is
// called.
func (e *Engine) PatchLimits(ctx context.Context, change func(*settings.Limits) error, may func(revision string) error) error {
	return e.changeLimits(ctx, func() error {
		l := e.limits.Settings()
		if err := conditional(change, may)(&l); err != nil {
			return err
		}
		return e.limits.Set(l)
	})
}

// LimitsRevision returns the limits of the whole broker and their revision.
func (e *Engine) LimitsRevision() (l settings.Limits, revision string) {
	l = e.Limits()
	revision = revisionOf(&l)
	return l, revision
}

// conditional returns change behind the condition may, which can be nil.
func conditional[S revised](change func(*S) error, may func(revision string) error) func(*S) error {
	if may == nil {
		return change
	}
	return func(s *S) error {
		if err := may(revisionOf(s)); err != nil {
			return err
		}
		return change(s)
	}
}

// TopicSettings executes the method of broker.Broker.
func (e *Engine) TopicSettings(name string) (settings.Topic, error) {
	t, err := e.catalog.Topic(name)
	if err != nil {
		return settings.Topic{}, err
	}
	return *t.Settings(), nil
}

// Topic executes the method of broker.Broker.
func (e *Engine) Topic(name string) (status.Topic, error) {
	t, err := e.catalog.Topic(name)
	if err != nil {
		return status.Topic{}, err
	}
	return e.describeOne(t), nil
}

// Topics executes the method of broker.Broker.
func (e *Engine) Topics() []status.Topic {
	ts, _ := e.catalog.All()
	out := make([]status.Topic, 0, len(ts))
	for _, t := range ts {
		out = append(out, e.describe(t))
	}
	slices.SortFunc(out, func(x, y status.Topic) int { return strings.Compare(x.Name, y.Name) })
	return out
}

func (e *Engine) describe(t *Topic) status.Topic {
	open := e.calls.Begin()
	if open {
		defer e.calls.End()
	}
	c := e.countTopic(t, open && e.store.Broken() == nil, time.Now())
	d := status.Topic{
		Name: c.Name, AutoCreated: t.Automatic(), Topic: *t.Settings(), StoredMessages: c.Stored.Messages, StoredBytes: c.Stored.Bytes,
		Backlog: c.Backlog, AcceptedMessages: c.Accepted, HalfMessages: c.Half,
		DelayedMessages: c.Delayed.Messages, DelayedBytes: c.Delayed.Bytes, Throttle: c.Throttle,
		LiteTopics: t.countLite(),
	}
	for _, s := range t.Subscriptions() {
		d.Groups = append(d.Groups, s.Consumed().Group().Name())
	}
	slices.Sort(d.Groups)
	return d
}

// CheckGroup executes the method of broker.Broker.
func (e *Engine) CheckGroup(name string, c settings.Group) error {
	return e.catalog.CheckGroup(name, c)
}

// EnsureGroup creates a consumer group with default settings if there is none, and returns its
// settings. It is cheap if the group exists. The error is 40403 if Options.MaxAutoGroups is
// reached.
func (e *Engine) EnsureGroup(ctx context.Context, name string) (settings.Group, error) {
	g, err := e.catalog.EnsureGroup(ctx, name)
	if err != nil {
		return settings.Group{}, err
	}
	return *g.Settings(), nil
}

// GroupSettings returns the settings of a consumer group. If there is no such group, it returns the
// defaults with which the first receive would create the group, or 40403 if Options.MaxAutoGroups
// is reached. It creates nothing.
func (e *Engine) GroupSettings(ctx context.Context, name string) (settings.Group, error) {
	return e.catalog.GroupSettings(ctx, name)
}

// Group executes the method of broker.Broker.
func (e *Engine) Group(name string) (status.Group, error) {
	g, err := e.catalog.Group(name)
	if err != nil {
		return status.Group{}, err
	}
	return e.describeOneGroup(g), nil
}

// Groups executes the method of broker.Broker.
func (e *Engine) Groups() []status.Group {
	gs := e.catalog.AllGroups()
	out := make([]status.Group, 0, len(gs))
	looks := new(int64(MaxLook))
	for _, g := range gs {
		out = append(out, e.describeGroup(g, looks))
	}
	slices.SortFunc(out, func(x, y status.Group) int { return strings.Compare(x.Name, y.Name) })
	return out
}

// describeGroup returns the settings and the state of a group. looks bounds the messages that it
// reads.
func (e *Engine) describeGroup(g *Group, looks *int64) status.Group {
	d := status.Group{Name: g.Name(), AutoCreated: g.Automatic(), Group: *g.Settings(), DeadLetterTopics: e.deadLetterTopics(g)}
	now, open := time.Now(), e.calls.Begin()
	if open {
		defer e.calls.End()
	}
	readable := open && e.store.Broken() == nil
	for _, s := range e.catalog.SubscriptionsOf(g) {
		c := e.countGroup(s, e.limits.Check(s.Topic(), now, nil) != nil, readable, looks, now)
		d.Topics = append(d.Topics, e.statusOf(&c))
	}
	slices.SortFunc(d.Topics, func(x, y status.Subscription) int { return strings.Compare(x.Topic, y.Topic) })
	return d
}

// AddressSettings executes the method of broker.Broker.
func (e *Engine) AddressSettings(match string) (status.Address, error) {
	s, err := e.catalog.Address(match)
	if err != nil {
		return status.Address{}, err
	}
	return status.Address{Match: match, Address: s, Revision: revisionOf(&s)}, nil
}

// AllAddressSettings executes the method of broker.Broker.
func (e *Engine) AllAddressSettings() []status.Address {
	out := []status.Address{}
	e.catalog.Addresses().All(func(p address.Pattern, s settings.Address) {
		out = append(out, status.Address{Match: p.String(), Address: s})
	})
	return out
}

// TopicAddressSettings executes the method of broker.Broker.
func (e *Engine) TopicAddressSettings(topic string) status.TopicAddress {
	matches := []string{}
	e.catalog.Addresses().All(func(p address.Pattern, _ settings.Address) {
		if p.Match(topic) {
			matches = append(matches, p.String())
		}
	})
	return status.TopicAddress{Topic: topic, Matches: slices.Clip(matches), Address: e.catalog.AddressOf(topic)}
}

// Limits executes the method of broker.Broker.
func (e *Engine) Limits() settings.Limits { return e.limits.Settings() }

// ConfigureLimits executes the method of broker.Broker.
func (e *Engine) ConfigureLimits(ctx context.Context, l settings.Limits) error {
	return e.changeLimits(ctx, func() error { return e.limits.Configure(l) })
}

func (e *Engine) changeLimits(ctx context.Context, change func() error) error {
	const op = "SetLimits"
	end, err := e.calls.beginWith(ctx)
	if err != nil {
		return refusal.WithOp(op, err)
	}
	defer end()
	if err := e.catalog.LockAdmin(ctx); err != nil {
		return refusal.WithOp(op, &tidegate.Error{Err: err})
	}
	defer e.catalog.UnlockAdmin()
	err = change()
	if _, ok := errors.AsType[*tidegate.Error](err); ok { // of a PatchLimits, or of the store
		return refusal.WithOp(op, err)
	}
	return refusal.Setting(op, "limits", err)
}

// Throttles executes the method of broker.Broker.
func (e *Engine) Throttles() []status.LimitState {
	open := e.calls.Begin()
	if open {
		defer e.calls.End()
	}
	topics, _ := e.catalog.All()
	return e.limits.States(topics, open && e.store.Broken() == nil, time.Now())
}

// TopicsPage returns up to limit topics by name, of those after a name that wanted accepts, and
// reports whether there are more. It looks at the state of the returned topics only.
func (e *Engine) TopicsPage(after string, limit int, wanted func(name string) bool) (page []status.Topic, more bool) {
	ts, _ := e.catalog.All()
	first, more := firstNames(ts, (*Topic).Name, after, limit, wanted)
	for _, t := range first {
		page = append(page, e.describe(t))
	}
	return page, more
}

// GroupsPage is TopicsPage for consumer groups.
func (e *Engine) GroupsPage(after string, limit int, wanted func(name string) bool) (page []status.Group, more bool) {
	first, more := firstNames(e.catalog.AllGroups(), (*Group).Name, after, limit, wanted)
	looks := new(int64(MaxLook))
	for _, g := range first {
		page = append(page, e.describeGroup(g, looks))
	}
	return page, more
}

// firstNames returns the first subjects by name, of those after a name that wanted accepts.
func firstNames[T any](all []T, name func(T) string, after string, limit int, wanted func(name string) bool) (first []T, more bool) {
	byName := func(x, y T) int {
		switch a, b := name(x), name(y); {
		case a < b:
			return -1
		case a > b:
			return 1
		}
		return 0
	}
	for _, s := range all {
		n := name(s)
		if n <= after || len(first) >= limit && n > name(first[limit-1]) && more || !wanted(n) {
			continue
		}
		if first = append(first, s); len(first) == 2*limit { // the rest cannot be among the first
			slices.SortFunc(first, byName)
			first, more = first[:limit], true
		}
	}
	slices.SortFunc(first, byName)
	if len(first) > limit {
		return first[:limit], true
	}
	return first, more
}

// queuesFrom returns the queues of a page, and the position of the next one.
func queuesFrom(t *Topic, after string, limit int) (page []*Queue, next string, err error) {
	if limit, err = pageLimit(limit); err != nil {
		return nil, "", err
	}
	first := 0
	if after != "" {
		last, perr := strconv.ParseUint(after, 10, 16)
		if perr != nil {
			return nil, "", refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page; give the value next of the previous page, or nothing for the first page", after)
		}
		first = int(last) + 1
	}
	all := t.Queues()
	page = all[min(first, len(all)):]
	if len(page) > limit {
		page, next = page[:limit], strconv.Itoa(int(page[limit-1].Number()))
	}
	return page, next, nil
}

// QueuesPage returns a page of the queues of a topic. It reads two messages of each queue. The
// error is 40402 if there is no such topic, and 40000 if after or limit is invalid.
func (e *Engine) QueuesPage(name, after string, limit int) (status.QueuePage, error) {
	if !e.calls.Begin() {
		return status.QueuePage{}, refusal.Closed()
	}
	defer e.calls.End()
	t, err := e.catalog.Topic(name)
	if err != nil {
		return status.QueuePage{}, err
	}
	page, next, err := queuesFrom(t, after, limit)
	out := status.QueuePage{Queues: make([]status.Queue, len(page)), Next: next}
	for i, q := range page {
		s := status.Queue{Queue: int(q.Number()), Begin: q.Low().Offset, End: q.End()}
		s.Messages = s.End - s.Begin - q.Gaps().Messages
		stored := store.Range{Topic: t.ID(), Queue: q.Number(), From: s.Begin, To: s.End}
		if s.Oldest, err = storedAt(e.store.FirstIn(stored)); err != nil {
			return out, err
		}
		if s.Newest, err = storedAt(e.store.LastIn(stored)); err != nil {
			return out, err
		}
		out.Queues[i] = s
	}
	return out, err
}

func storedAt(m store.Stored, ok bool, err error) (time.Time, error) {
	if err != nil {
		return time.Time{}, refusal.Store(err)
	}
	if !ok {
		return time.Time{}, nil
	}
	return m.At, nil
}

// GroupQueues returns a page of the progress of a group in a topic. It reads a message of each
// queue. The errors are those of Leases and QueuesPage.
func (e *Engine) GroupQueues(group, name, after string, limit int) (status.GroupQueuePage, error) {
	if !e.calls.Begin() {
		return status.GroupQueuePage{}, refusal.Closed()
	}
	defer e.calls.End()
	s, err := e.subscriptionOf(group, name)
	if err != nil {
		return status.GroupQueuePage{}, err
	}
	page, next, err := queuesFrom(s.Topic(), after, limit)
	out := status.GroupQueuePage{Queues: make([]status.GroupQueue, len(page)), Next: next}
	s.Look(func(p *consume.Progress) {
		for i, q := range page {
			g := &out.Queues[i]
			g.Queue, g.Begin, g.End = int(q.Number()), q.Low().Offset, q.End()
			g.Cursor = g.Begin
			if g.Queue < p.Queues() {
				g.Cursor, g.Unfinished = p.Cursor(g.Queue).Next, p.Unfinished(g.Queue)
			}
			g.Undelivered = max(g.End-g.Cursor, 0)
		}
	})
	for i := range out.Queues {
		g := &out.Queues[i]
		first := store.Range{Topic: s.Topic().ID(), Queue: uint16(g.Queue), From: g.Cursor, To: g.End}
		if g.Oldest, err = storedAt(e.store.FirstIn(first)); err != nil {
			return out, err
		}
	}
	return out, err
}

// PlanRewind returns the result that Rewind would have, and changes nothing. The errors are those
// of Rewind, and 40403 if the group has not received from the topic.
func (e *Engine) PlanRewind(group, name string, to status.Position) ([]status.QueueRewind, error) {
	if !e.calls.Begin() {
		return nil, refusal.Closed()
	}
	defer e.calls.End()
	if err := validate(to); err != nil {
		return nil, err
	}
	s, err := e.subscriptionOf(group, name)
	if err != nil {
		return nil, err
	}
	planned, err := s.PlanRewind(Position{Latest: to.Latest, Time: to.Time, Offsets: to.Offsets})
	if err != nil {
		return nil, err
	}
	out := make([]status.QueueRewind, len(planned))
	for i, r := range planned {
		out[i] = status.QueueRewind(r)
	}
	return out, nil
}

// CountPurge returns the messages that PurgeTopic would remove, and changes nothing. The bytes are
// without those of half messages. The error is 40402 if there is no such topic.
func (e *Engine) CountPurge(name string) (status.Backlog, error) {
	t, err := e.catalog.Topic(name)
	if err != nil {
		return status.Backlog{}, err
	}
	all, delayed := t.Stored(), t.Delayed()
	return status.Backlog{Messages: all.Messages + delayed.Messages + t.Counters().Half.Load(), Bytes: all.Bytes + delayed.Bytes}, nil
}

// RetryInterval returns the interval, without jitter, between a failure of delivery d and the
// redelivery. It is the interval after attempt d.Attempt or, if that is zero, after the attempt of
// the handle. The error is 40013 for an invalid handle. A handle that has been replaced is an error
// only if d.Attempt is zero.
func (e *Engine) RetryInterval(d *tidegate.Delivery) (time.Duration, error) {
	s, h, err := e.locate(d)
	if err != nil {
		return 0, err
	}
	attempt := d.Attempt
	if attempt == 0 {
		if attempt, err = s.Attempt(h); err != nil {
			return 0, err
		}
	}
	return s.Policy().Ladder().Delay(attempt - 1), nil
}

// RetryPolicy returns the policy of a group with the settings c in the given topics: the largest
// maximum of attempts among the topics, and their retry schedule if it is the same in all of them,
// or else that of the group. A topic that does not exist has the policy of the group. Clients only
// show the policy; the broker applies it.
func (e *Engine) RetryPolicy(c settings.Group, topics ...string) RetryPolicy {
	c = c.WithDefaults()
	own := Policy{Group: &c, Address: &AddressPolicy{}}
	out := RetryPolicy{MaxAttempts: own.MaxAttempts(), Ladder: own.Ladder()}
	seen := 0
	for _, name := range topics {
		p := own
		if t := e.catalog.FindTopic(name); t != nil {
			p.Address = t.Address()
		}
		most, ladder := p.MaxAttempts(), p.Ladder()
		if seen++; seen == 1 {
			out = RetryPolicy{MaxAttempts: most, Ladder: ladder}
			continue
		}
		if out.MaxAttempts > 0 && (most < 0 || most > out.MaxAttempts) {
			out.MaxAttempts = most
		}
		if !slices.Equal(ladder, out.Ladder) {
			out.Ladder = own.Ladder()
		}
	}
	return out
}

// ProducerSettings executes the method of broker.Broker.
func (e *Engine) ProducerSettings(ctx context.Context, _ string) (transport.ProducerSettings, error) {
	end, err := e.calls.beginWith(ctx)
	if err != nil {
		return transport.ProducerSettings{}, err
	}
	defer end()
	return transport.ProducerSettings{MaxAttempts: 3, Backoff: backoff.Default(), MaxBodySize: e.opts.MaxBodySize}, nil
}

// ConsumerSettings executes the method of broker.Broker.
func (e *Engine) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	end, err := e.calls.beginWith(ctx)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	defer end()
	c, err := e.EnsureGroup(ctx, group)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	p := e.RetryPolicy(c, topic)
	return transport.ConsumerSettings{
		FIFO: c.FIFO, MaxAttempts: p.MaxAttempts, Retry: p.Ladder, ReceiveBatchSize: settingReceive, LongPolling: 20 * time.Second,
	}, nil
}

// InvisibleBounds returns the bounds of the invisible duration that a receive can request:
// Options.MinInvisibleDuration and MaxInvisibleDuration.
func (e *Engine) InvisibleBounds() (least, most time.Duration) {
	return e.opts.MinInvisibleDuration, e.opts.MaxInvisibleDuration
}

// Queues executes the method of broker.Broker.
func (e *Engine) Queues(ctx context.Context, _, topic string) ([]int, error) {
	end, err := e.calls.beginWith(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if _, err := e.catalog.Topic(topic); err != nil {
		return nil, err
	}
	return []int{transport.AnyQueue}, nil
}

// Capabilities executes the method of broker.Broker.
func (e *Engine) Capabilities(string) transport.Capabilities {
	return transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true,
		RepeatReceive: true, RepeatChange: true, Verdicts: verdicts(),
	}
}
