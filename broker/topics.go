package broker

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// A topic is the running side of a Topic.
type topic struct {
	id   uint32
	name string

	config  atomic.Pointer[TopicConfig]
	address atomic.Pointer[addressPolicy]

	automatic atomic.Bool // an automatic dead-letter queue, which nobody has put

	queues     atomic.Pointer[[]*queue] // only grows
	subs       atomic.Pointer[[]*subscription]
	roundRobin atomic.Uint32 // over queues, for messages without a message group
	deleted    atomic.Bool

	// What was appended, written or on its way: changed only within the store's Add.
	messages, bytes atomic.Int64
	opened          Backlog // messages and bytes when the broker was opened
	duplicates      atomic.Int64
	pending         pending.Counters

	lowMessages, lowBytes    atomic.Int64 // before the queues' beginnings
	leftovers, leftoverBytes atomic.Int64 // of those, still there: a group is not done with them
	removed                  [retention.Causes]atomic.Int64

	retention    *retentionTasks
	retentionDue atomic.Int64 // when the next round is due, in nanoseconds since 1970; 0 for never
	retentionRan atomic.Int64 // when the last one began
	watched      atomic.Bool  // a round is due when groups are done with messages
	hasGaps      atomic.Bool  // messages may have been removed from between others

	recent *duplicates.Memory // used only within the store's Add, and before anything else runs

	limits  backlogLimits
	age     throttle.Age // of the backlog, used while it has no group
	gatesMu sync.Mutex
	cold    throttle.Cold // guarded by gatesMu: of reads by groups far behind
	coldOn  atomic.Bool   // they refused sends at the last look
	rate    throttle.Rate // guarded by gatesMu: of TopicConfig.MaxRate
}

// A queue is one sequence of messages.
type queue struct {
	number uint16

	// Where it begins: no group has its cursor before it. It changes with
	// Broker.mu held.
	low atomic.Pointer[store.Mark]

	// Used by the holder of the task of retention, and before anything else runs.
	retention retention.Queue

	// What was removed from between the others, from low on; changed only within
	// the store's Add.
	removedMessages, removedBytes atomic.Int64

	// What was given out; changed only within the store's Add.
	nextOffset, nextBytes int64

	// The offset after the last message that is on disk: up to here consumers see.
	end atomic.Int64
}

// A storedTopic is the form in which a topic's settings are kept.
type storedTopic struct {
	ID        uint32 `json:"id"`
	Automatic bool   `json:"automatic,omitempty"`
	TopicConfig
}

func newTopic(name string, id uint32, c TopicConfig, r *retentionTasks) *topic {
	t := &topic{id: id, name: name, retention: r}
	t.recent = r.newRecentIDs(id)
	t.config.Store(&c)
	t.address.Store(&addressPolicy{})
	t.queues.Store(&[]*queue{})
	t.subs.Store(&[]*subscription{})
	t.grow(c.Queues)
	return t
}

func (t *topic) grow(n int) {
	queues := slices.Clone(*t.queues.Load())
	for len(queues) < n {
		q := &queue{number: uint16(len(queues))}
		q.low.Store(&store.Mark{})
		queues = append(queues, q)
	}
	t.queues.Store(&queues)
}

// PutTopic creates a topic or changes its settings, and returns when that is
// on disk. A topic's type cannot change, its number of queues not fall (40000).
func (b *Broker) PutTopic(ctx context.Context, name string, c TopicConfig) (Topic, error) {
	if !b.begin() {
		return Topic{}, fail.Closed()
	}
	defer b.end()
	if err := tidegate.ValidateTopic(name); err != nil {
		return Topic{}, err
	}
	if err := b.lockAdmin(ctx); err != nil {
		return Topic{}, err
	}
	defer b.unlockAdmin()
	t, err := b.putTopic(name, c)
	if err != nil {
		return Topic{}, err
	}
	return b.describe(t), nil
}

// putTopic is PutTopic for who holds admin already.
func (b *Broker) putTopic(name string, c TopicConfig) (*topic, error) {
	return b.makeTopic(name, c, false)
}

func (b *Broker) makeTopic(name string, c TopicConfig, automatic bool) (*topic, error) {
	b.mu.RLock()
	t := b.topics[name]
	b.mu.RUnlock()
	if t != nil {
		before := t.config.Load()
		if c.Type == "" {
			c.Type = before.Type
		}
		if c.Queues == 0 {
			c.Queues = before.Queues
		}
		if c.Type != before.Type {
			return nil, fail.New(tidegate.CodeBadRequest, name, "its type is %s and cannot become %s; make another topic", before.Type, c.Type)
		}
		if c.Queues < before.Queues {
			return nil, fail.New(tidegate.CodeBadRequest, name, "it has %d queues and cannot have fewer (%d): their messages would be lost",
				before.Queues, c.Queues)
		}
	}
	c = c.WithDefaults()
	if err := fail.Setting("PutTopic", name, c.Validate()); err != nil {
		return nil, err
	}
	if t != nil && *t.config.Load() == c && t.automatic.Load() == automatic {
		return t, nil // nothing changes
	}
	number := b.number
	created := t == nil
	if created {
		number++
		t = newTopic(name, number, c, b.retention)
		t.address.Store(b.addressPolicy(name))
	}
	v, err := json.Marshal(storedTopic{t.id, automatic, c})
	if err != nil {
		return nil, fail.Store(err)
	}
	if err := b.store.Messages.Add(func(w *store.Batch) {
		w.PutTopic(name, v)
		w.PutNumber(number)
	}, nil).Wait(); err != nil {
		return nil, fail.Store(err)
	}
	b.number = number
	t.config.Store(&c)
	t.gatesMu.Lock()
	t.rate.Fill(throttle.RateLimit(c.MaxRate))
	t.gatesMu.Unlock()
	t.watch()
	if !created {
		b.retention.wake(t, time.Now()) // the settings may be others
	}
	t.automatic.Store(automatic)
	if created {
		b.mu.Lock()
		b.topics[name] = t
		b.mu.Unlock()
	} else {
		b.mu.Lock() // a new subscription sees the new queues, or is among those that grow
		t.grow(c.Queues)
		subs := *t.subs.Load()
		b.mu.Unlock()
		for _, s := range subs {
			s.addQueues()
		}
	}
	return t, nil
}

// TopicSettings returns a topic's settings with defaults filled in; 40402 if
// there is none. It is cheap.
func (b *Broker) TopicSettings(name string) (TopicConfig, error) {
	t, err := b.topic(name)
	if err != nil {
		return TopicConfig{}, err
	}
	return *t.config.Load(), nil
}

// Topic returns a topic; 40402 if there is none.
func (b *Broker) Topic(name string) (Topic, error) {
	t, err := b.topic(name)
	if err != nil {
		return Topic{}, err
	}
	return b.describe(t), nil
}

// Topics returns all topics by name, dead letter topics included.
func (b *Broker) Topics() []Topic {
	b.mu.RLock()
	ts := slices.Collect(maps.Values(b.topics))
	b.mu.RUnlock()
	out := make([]Topic, 0, len(ts))
	for _, t := range ts {
		out = append(out, b.describe(t))
	}
	slices.SortFunc(out, func(x, y Topic) int { return strings.Compare(x.Name, y.Name) })
	return out
}

func (b *Broker) describe(t *topic) Topic {
	d := Topic{
		Name: t.name, AutoCreated: t.automatic.Load(), TopicConfig: *t.config.Load(),
		Bytes: t.bytes.Load() - t.lowBytes.Load() + t.leftoverBytes.Load(), Backlog: t.backlog(),
		HalfMessages: t.pending.Half.Load(),
	}
	d.DelayedMessages, d.DelayedBytes = t.pending.Delayed()
	for _, q := range *t.queues.Load() {
		d.Messages += q.end.Load() - q.low.Load().Offset - q.removedMessages.Load()
		d.Bytes -= q.removedBytes.Load()
	}
	d.Messages += t.leftovers.Load()
	if len(*t.subs.Load()) == 0 {
		d.Backlog = Backlog{Messages: d.Messages, Bytes: d.Bytes}
	}
	for _, s := range *t.subs.Load() {
		d.Groups = append(d.Groups, s.group.name)
	}
	slices.Sort(d.Groups)
	now := time.Now()
	if b.begin() {
		if b.store.Broken() == nil {
			b.observe(t, now)
		}
		b.end()
	}
	d.Throttle = b.throttle(t, now, nil)
	return d
}

// DeleteTopic removes a topic with its messages and the groups' progress in it.
func (b *Broker) DeleteTopic(ctx context.Context, name string) error {
	if !b.begin() {
		return fail.Closed()
	}
	defer b.end()
	if err := b.lockAdmin(ctx); err != nil {
		return err
	}
	defer b.unlockAdmin()
	t, err := b.topic(name)
	if err != nil {
		return err
	}
	_, err = b.deleteTopic(ctx, t, nil)
	return err
}

// deleteTopic removes a topic with its messages and the groups' progress in it. may, which runs
// within Add, reports whether it may be deleted; nil: it may. The caller holds admin.
func (b *Broker) deleteTopic(ctx context.Context, t *topic, may func() bool) (deleted bool, err error) {
	// Sends and receives under way write before the deletion, or notice deleted within Add and
	// write nothing. Progress that is left without its topic is skipped; a topic that is left
	// without progress would be consumed anew.
	var last uint64
	if err := b.store.Messages.Add(func(w *store.Batch) {
		if deleted = may == nil || may(); !deleted {
			return
		}
		t.deleted.Store(true)
		last = b.delayed.Last()
		w.DeleteTopic(t.name, t.id)
		for _, s := range *t.subs.Load() {
			w.DeleteSubscriptionOfTopic(s.group.id, t.id)
		}
	}, nil).Wait(); err != nil {
		return false, fail.Store(err)
	}
	if !deleted {
		return false, nil
	}
	b.mu.Lock()
	delete(b.topics, t.name)
	subs := *t.subs.Load()
	for _, s := range subs {
		b.subs.remove(s)
	}
	b.mu.Unlock()
	for _, s := range subs {
		s.close()
	}
	b.retention.addDeleted(t)
	defer b.retention.reclaimSoon()
	if err := b.deleteProgress(subs); err != nil {
		return true, err
	}
	// If the process ends before this they go when their time comes.
	return true, b.removeDelayed(context.WithoutCancel(ctx), t, last, &Backlog{})
}
