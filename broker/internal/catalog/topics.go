package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/classes"
	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
)

// PutTopic creates a topic or changes its settings. It returns when this is on disk. The error is
// 40000 for invalid settings, another type, or fewer queues than before, or that of may.
//
// may, if not nil, gets the settings of the topic, or nil if there is no such topic. It runs while
// no other change of settings is under way, and must not wait. If it returns an error, nothing
// changes.
func (c *Catalog) PutTopic(ctx context.Context, name string, s settings.Topic, may func(now *settings.Topic) error) (*topic.Topic, error) {
	if !c.config.Env.Calls.Begin() {
		return nil, refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := tidegate.ValidateTopic(name); err != nil {
		return nil, err
	}
	if err := c.LockAdmin(ctx); err != nil {
		return nil, err
	}
	defer c.UnlockAdmin()
	if may != nil {
		var now *settings.Topic
		if t := c.FindTopic(name); t != nil {
			now = t.Settings()
		}
		if err := may(now); err != nil {
			return nil, err
		}
	}
	return c.PutTopicLocked(name, s, false)
}

// PutTopicLocked is PutTopic without its wait. automatic means that the topic is an automatic dead
// letter queue. The caller holds the token of LockAdmin.
func (c *Catalog) PutTopicLocked(name string, s settings.Topic, automatic bool) (*topic.Topic, error) {
	t := c.FindTopic(name)
	if t != nil {
		before := t.Settings()
		if s.Type == "" {
			s.Type = before.Type
		}
		if s.Queues == 0 {
			s.Queues = before.Queues
		}
		if s.Type != before.Type {
			return nil, refusal.New(tidegate.CodeBadRequest, name, "the topic's type is %s and cannot become %s; create another topic", before.Type, s.Type)
		}
		if s.Queues < before.Queues {
			return nil, refusal.New(tidegate.CodeBadRequest, name, "the topic has %d queues and cannot have fewer (%d), because their messages would be lost; give at least as many",
				before.Queues, s.Queues)
		}
	}
	s = s.WithDefaults()
	if err := refusal.Setting("PutTopic", name, s.Validate()); err != nil {
		return nil, err
	}
	if t != nil && *t.Settings() == s && t.Automatic() == automatic {
		return t, nil // nothing changes
	}
	number := c.number
	created := t == nil
	if created {
		number++
		t = c.newTopic(name, number, s)
		t.SetAddress(c.addressPolicy(name))
	}
	v, err := topic.Record{ID: t.ID(), Automatic: automatic, Topic: s}.Encode()
	if err != nil {
		return nil, refusal.Store(err)
	}
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		w.PutTopic(name, v)
		w.PutNumber(number)
	}, nil).Wait(); err != nil {
		return nil, refusal.Store(err)
	}
	c.number = number
	t.SetSettings(s)
	limits.RateChanged(t)
	t.Watch()
	if !created {
		t.WakeRetention(time.Now()) // the retention settings may have changed
	}
	t.SetAutomatic(automatic)
	if created {
		c.AddTopic(t)
		return t, nil
	}
	for _, s := range c.grow(t, s.Queues) {
		s.AddQueues()
	}
	return t, nil
}

// newTopic returns an empty topic.
func (c *Catalog) newTopic(name string, id uint32, s settings.Topic) *topic.Topic {
	return topic.New(topic.Config{
		ID: id, Name: name, Retention: c.config.Retention.Task(), Transaction: c.config.Transaction, Classes: classes.NewTable(id, &c.classes),
		IDs: duplicates.NewMemory(id, c.idKey, c.forgetting), Clock: c.config.Env.Clock, Activity: c.config.Env.Activity,
	}, s)
}

// grow adds queues to a topic, and returns its subscriptions. A subscription that is added later
// has the new queues.
func (c *Catalog) grow(t *topic.Topic, queues int) []topic.Subscription {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Grow(queues)
	return t.Subscriptions()
}

// DeleteTopic removes a topic with its messages and the progress of groups in it. The error is
// 40402 if there is no such topic, or that of may, as in PutTopic.
func (c *Catalog) DeleteTopic(ctx context.Context, name string, may func(now *settings.Topic) error) error {
	if !c.config.Env.Calls.Begin() {
		return refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return err
	}
	defer c.UnlockAdmin()
	t, err := c.Topic(name)
	if err != nil {
		return err
	}
	if may != nil {
		if err := may(t.Settings()); err != nil {
			return err
		}
	}
	_, err = c.deleteTopic(ctx, t, nil)
	return err
}

// deleteTopic removes a topic with its messages and the groups' progress in it. may, which runs
// within Add, reports whether it may be deleted; nil: it may. The caller holds the token.
func (c *Catalog) deleteTopic(ctx context.Context, t *topic.Topic, may func() bool) (deleted bool, err error) {
	// Sends and receives under way write before the deletion, or notice deleted within Add and
	// write nothing. Progress that is left without its topic is skipped; a topic that is left
	// without progress would be consumed anew.
	var last uint64
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		if deleted = may == nil || may(); !deleted {
			return
		}
		t.Delete()
		last = c.config.Delayed.Last()
		w.DeleteTopic(t.Name(), t.ID())
		for _, s := range t.Subscriptions() {
			w.DeleteSubscriptionOfTopic(s.Consumed().Group().ID(), t.ID())
		}
	}, nil).Wait(); err != nil {
		return false, refusal.Store(err)
	}
	if !deleted {
		return false, nil
	}
	subs := c.RemoveTopic(t)
	for _, s := range subs {
		s.Close(refusal.TopicNotFound(t.Name()))
	}
	c.config.Retention.TopicDeleted(t)
	defer c.config.Retention.ReclaimSoon()
	if err := c.deleteProgress(subs); err != nil {
		return true, err
	}
	// If the process ends before this, the delayed messages are removed at their delivery times.
	return true, c.config.Retention.RemoveDelayed(context.WithoutCancel(ctx), t, last, &topic.Amount{})
}

// CreateOwnTopic is OwnTopic for work that no request can cancel, for example a dead letter. Close
// does not cancel it either, but waits for the work.
func (c *Catalog) CreateOwnTopic(name string, s settings.Topic, automatic bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.config.Env.Life), time.Minute)
	defer cancel()
	_, err := c.OwnTopic(ctx, name, s, automatic)
	return err
}

// OwnTopic returns a topic that the broker itself writes to, and creates it for the first message.
// automatic means that a created topic is an automatic dead letter queue. ctx ends the wait for
// other changes of settings.
func (c *Catalog) OwnTopic(ctx context.Context, name string, s settings.Topic, automatic bool) (*topic.Topic, error) {
	if t := c.FindTopic(name); t != nil {
		return t, nil
	}
	if err := c.LockAdmin(ctx); err != nil {
		return nil, fmt.Errorf("create topic %s: %w", name, err)
	}
	defer c.UnlockAdmin()
	if t := c.FindTopic(name); t != nil {
		return t, nil
	}
	t, err := c.PutTopicLocked(name, s, automatic)
	if err == nil && automatic {
		c.autoDelete.Wake(time.Now().Add(AutoDeleteDelay))
	}
	return t, err
}
