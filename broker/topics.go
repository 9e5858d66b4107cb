package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

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
func (b *Broker) putTopic(name string, c TopicConfig) (*topic.Topic, error) {
	return b.makeTopic(name, c, false)
}

func (b *Broker) makeTopic(name string, c TopicConfig, automatic bool) (*topic.Topic, error) {
	b.mu.RLock()
	t := b.topics[name]
	b.mu.RUnlock()
	if t != nil {
		before := t.Settings()
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
	if t != nil && *t.Settings() == c && t.Automatic() == automatic {
		return t, nil // nothing changes
	}
	number := b.number
	created := t == nil
	if created {
		number++
		t = b.newTopic(name, number, c)
		t.SetAddress(b.addressPolicy(name))
	}
	v, err := topic.Record{ID: t.ID(), Automatic: automatic, Topic: c}.Encode()
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
	t.SetSettings(c)
	limits.RateChanged(t)
	t.Watch()
	if !created {
		t.WakeRetention(time.Now()) // the settings may be others
	}
	t.SetAutomatic(automatic)
	if created {
		b.mu.Lock()
		b.topics[name] = t
		b.mu.Unlock()
	} else {
		b.mu.Lock() // a new subscription sees the new queues, or is among those that grow
		t.Grow(c.Queues)
		subs := t.Subscriptions()
		b.mu.Unlock()
		for _, s := range subs {
			s.AddQueues()
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
	return *t.Settings(), nil
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

func (b *Broker) describe(t *topic.Topic) Topic {
	stored, subs := t.Stored(), t.Subscriptions()
	d := Topic{
		Name: t.Name(), AutoCreated: t.Automatic(), TopicConfig: *t.Settings(),
		Messages: stored.Messages, Bytes: stored.Bytes, Backlog: Backlog(t.Backlog()),
		HalfMessages: t.Counters().Half.Load(),
	}
	d.DelayedMessages, d.DelayedBytes = t.Counters().Delayed()
	if len(subs) == 0 {
		d.Backlog = Backlog{Messages: d.Messages, Bytes: d.Bytes}
	}
	for _, s := range subs {
		d.Groups = append(d.Groups, s.Consumed().Group().Name())
	}
	slices.Sort(d.Groups)
	now := time.Now()
	if b.begin() {
		if b.store.Broken() == nil {
			b.limits.Observe(t, now)
		}
		b.end()
	}
	d.Throttle = b.limits.Check(t, now, nil)
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
func (b *Broker) deleteTopic(ctx context.Context, t *topic.Topic, may func() bool) (deleted bool, err error) {
	// Sends and receives under way write before the deletion, or notice deleted within Add and
	// write nothing. Progress that is left without its topic is skipped; a topic that is left
	// without progress would be consumed anew.
	var last uint64
	if err := b.store.Messages.Add(func(w *store.Batch) {
		if deleted = may == nil || may(); !deleted {
			return
		}
		t.Delete()
		last = b.delayed.Last()
		w.DeleteTopic(t.Name(), t.ID())
		for _, s := range t.Subscriptions() {
			w.DeleteSubscriptionOfTopic(s.Consumed().Group().ID(), t.ID())
		}
	}, nil).Wait(); err != nil {
		return false, fail.Store(err)
	}
	if !deleted {
		return false, nil
	}
	b.mu.Lock()
	delete(b.topics, t.Name())
	subs := b.subs.to(t.ID())
	for _, s := range subs {
		b.subs.remove(s)
	}
	b.mu.Unlock()
	for _, s := range subs {
		s.Close(fail.TopicNotFound(t.Name()))
	}
	b.retention.TopicDeleted(t)
	defer b.retention.ReclaimSoon()
	if err := b.deleteProgress(subs); err != nil {
		return true, err
	}
	// If the process ends before this they go when their time comes.
	return true, b.retention.RemoveDelayed(context.WithoutCancel(ctx), t, last, &topic.Amount{})
}

// createOwnTopic is ownTopic for work that no request can cancel, for example a dead letter. Close
// does not cancel it either, but waits for the work.
func (b *Broker) createOwnTopic(name string, c TopicConfig, automatic bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), time.Minute)
	defer cancel()
	_, err := b.ownTopic(ctx, name, c, automatic)
	return err
}

// ownTopic returns a topic that the broker itself writes to, and creates it for the first message.
// automatic means that a created topic is an automatic dead letter queue. ctx ends the wait for
// other changes of settings.
func (b *Broker) ownTopic(ctx context.Context, name string, c TopicConfig, automatic bool) (*topic.Topic, error) {
	b.mu.RLock()
	t := b.topics[name]
	b.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	if err := b.lockAdmin(ctx); err != nil {
		return nil, fmt.Errorf("making topic %s: %w", name, err)
	}
	defer b.unlockAdmin()
	b.mu.RLock()
	t = b.topics[name]
	b.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	t, err := b.makeTopic(name, c, automatic)
	if err == nil && automatic {
		b.autoDelete.Wake(time.Now().Add(autoDeleteDelay))
	}
	return t, err
}
