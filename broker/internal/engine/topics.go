package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/address"
)

// PutTopic creates a topic or changes its settings. It returns when this is on disk. The error is
// 40000 for invalid settings, another type, or fewer queues than before, or that of may.
//
// may, if not nil, gets the settings of the topic, or nil if there is no such topic. It runs while
// no other change of settings is under way, and must not wait. If it returns an error, nothing
// changes.
func (c *Catalog) PutTopic(ctx context.Context, name string, s settings.Topic, may func(now *settings.Topic) error) (*Topic, error) {
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
func (c *Catalog) PutTopicLocked(name string, s settings.Topic, automatic bool) (*Topic, error) {
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
	v, err := topicRecord{ID: t.ID(), Automatic: automatic, Topic: s}.Encode()
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
	rateChanged(t)
	t.Watch()
	if !created {
		t.WakeRetention(time.Now()) // the retention settings may have changed
	}
	t.SetAutomatic(automatic)
	switch {
	case created:
		c.AddTopic(t)
		return t, nil
	case t.lite(): // its queues are those of its lite topics
		return t, nil
	}
	for _, s := range c.grow(t, s.Queues) {
		s.AddQueues()
	}
	return t, nil
}

// newTopic returns an empty topic.
func (c *Catalog) newTopic(name string, id uint32, s settings.Topic) *Topic {
	return newTopic(TopicConfig{
		ID: id, Name: name, Retention: c.config.Retention.Task(), Transaction: c.config.Transaction, Classes: deadletter.NewClasses(id, &c.classes),
		IDs: newDuplicates(id, c.idKey, c.forgetting), Clock: c.config.Env.Clock, Activity: c.config.Env.Activity,
	}, s)
}

// grow adds queues to a topic, and returns its subscriptions. A subscription that is added later
// has the new queues.
func (c *Catalog) grow(t *Topic, queues int) []TopicSubscription {
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
func (c *Catalog) deleteTopic(ctx context.Context, t *Topic, may func() bool) (deleted bool, err error) {
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
	return true, c.config.Retention.RemoveDelayed(context.WithoutCancel(ctx), t, last, &Contents{})
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
func (c *Catalog) OwnTopic(ctx context.Context, name string, s settings.Topic, automatic bool) (*Topic, error) {
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
		c.autoDelete.Wake(time.Now().Add(autoDeleteDelay))
	}
	return t, err
}

// maxAddresses is the maximum number of patterns with settings.
const maxAddresses = 1024

// PutAddress replaces the settings of a pattern. It returns when this is on disk. The settings
// apply at once to the topics that the pattern matches. The error is 40000 for an invalid pattern,
// for invalid settings, and if MaxAddresses is reached. may is as in PutTopic.
func (c *Catalog) PutAddress(ctx context.Context, match string, s settings.Address, may func(now *settings.Address) error) error {
	const op = "PutAddressSettings"
	p, err := address.Parse(match)
	if err = refusal.Setting(op, match, errors.Join(err, s.Validate())); err != nil {
		return err
	}
	v, err := json.Marshal(s)
	if err != nil {
		return refusal.Store(err)
	}
	return refusal.WithOp(op, c.changeAddresses(ctx, func(set address.Set[settings.Address]) (address.Set[settings.Address], func(*store.Batch), error) {
		n := 0
		set.All(func(address.Pattern, settings.Address) { n++ })
		before, there := set.Get(p)
		if may != nil {
			now := &before
			if !there {
				now = nil
			}
			if err := may(now); err != nil {
				return set, nil, err
			}
		}
		if there && reflect.DeepEqual(before, s) {
			return set, nil, nil // nothing changes
		}
		if !there && n >= maxAddresses {
			return set, nil, refusal.New(tidegate.CodeBadRequest, match, "%d patterns have address settings, which is the limit; delete some", n)
		}
		return set.With(p, s), func(w *store.Batch) { w.PutAddressSettings(match, v) }, nil
	}))
}

// DeleteAddress removes the settings of a pattern. It returns when this is on disk. The error is
// 40400 if the pattern has no settings, and 40000 if it is invalid. may is as in DeleteTopic.
func (c *Catalog) DeleteAddress(ctx context.Context, match string, may func(now *settings.Address) error) error {
	const op = "DeleteAddressSettings"
	p, err := parseMatch(op, match)
	if err != nil {
		return err
	}
	return refusal.WithOp(op, c.changeAddresses(ctx, func(set address.Set[settings.Address]) (address.Set[settings.Address], func(*store.Batch), error) {
		now, there := set.Get(p)
		if !there {
			return set, nil, noAddress(match)
		}
		if may != nil {
			if err := may(&now); err != nil {
				return set, nil, err
			}
		}
		return set.Without(p), func(w *store.Batch) { w.DeleteAddressSettings(match) }, nil
	}))
}

// Address returns the settings of a pattern. The errors are those of DeleteAddress.
func (c *Catalog) Address(match string) (settings.Address, error) {
	p, err := parseMatch("AddressSettings", match)
	if err != nil {
		return settings.Address{}, err
	}
	s, ok := c.addresses.Load().Get(p)
	if !ok {
		return settings.Address{}, noAddress(match)
	}
	return s, nil
}

// Addresses returns the settings of all patterns.
func (c *Catalog) Addresses() *address.Set[settings.Address] { return c.addresses.Load() }

// AddressOf returns the merged settings of all patterns that match a topic. The topic need not
// exist.
func (c *Catalog) AddressOf(topic string) settings.Address {
	var s settings.Address
	for _, less := range c.addresses.Load().Matching(topic) {
		s = s.Over(less)
	}
	return s
}

// addressPolicy returns the effects of the address settings on a topic.
func (c *Catalog) addressPolicy(name string) *AddressPolicy {
	return newAddressPolicy(c.AddressOf(name))
}

func parseMatch(op, match string) (address.Pattern, error) {
	p, err := address.Parse(match)
	if err != nil {
		return p, refusal.Setting(op, match, err)
	}
	return p, nil
}

func noAddress(match string) error {
	return refusal.New(tidegate.CodeNotFound, match, "the pattern %q has no address settings; create them with PUT /v1/address-settings/{match}", match)
}

// changeAddresses replaces the settings of all patterns by the result of change, after the returned
// write. Without a write, or with an error, nothing changes.
func (c *Catalog) changeAddresses(ctx context.Context, change func(address.Set[settings.Address]) (address.Set[settings.Address], func(*store.Batch), error)) error {
	if !c.config.Env.Calls.Begin() {
		return refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return err
	}
	defer c.UnlockAdmin()
	set, write, err := change(*c.addresses.Load())
	if err != nil || write == nil {
		return err
	}
	if err := c.config.Store.Messages.Add(write, nil).Wait(); err != nil {
		return refusal.Store(err)
	}
	c.mu.Lock()
	c.addresses.Store(&set)
	for _, t := range c.topics {
		t.SetAddress(c.addressPolicy(t.Name()))
	}
	c.mu.Unlock()
	c.config.Servers.ConsumerSettingsChanged("")
	return nil
}

// recoverAddresses restores the address settings. Nothing else runs yet.
func (c *Catalog) recoverAddresses() error {
	var set address.Set[settings.Address]
	err := c.config.Store.AddressSettings(func(match string, v []byte) error {
		p, err := address.Parse(match)
		var s settings.Address
		if err == nil {
			err = json.Unmarshal(v, &s)
		}
		if err != nil {
			return fmt.Errorf("the address settings of %q: %w", strings.ToValidUTF8(match, "?"), err)
		}
		set = set.With(p, s)
		return nil
	})
	c.addresses.Store(&set)
	return err
}
