package catalog

import (
	"context"
	"reflect"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/letters"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
)

// PutGroup creates a consumer group or changes its settings. It returns when this is on disk. The
// errors are those of CheckGroup and of may, as in PutTopic.
func (c *Catalog) PutGroup(ctx context.Context, name string, s settings.Group, may func(now *settings.Group) error) (*topic.Group, error) {
	if !c.config.Env.Calls.Begin() {
		return nil, refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := tidegate.ValidateGroup(name); err != nil {
		return nil, err
	}
	if err := c.LockAdmin(ctx); err != nil {
		return nil, err
	}
	defer c.UnlockAdmin()
	if may != nil {
		var now *settings.Group
		if g := c.FindGroup(name); g != nil {
			now = g.Settings()
		}
		if err := may(now); err != nil {
			return nil, err
		}
	}
	g, err := c.putGroupLocked(name, s, false)
	if err != nil {
		return nil, err
	}
	c.config.Servers.ConsumerSettingsChanged(name)
	return g, nil
}

// PatchGroup is PutGroup for a change of the settings that a group has. It calls change with a copy
// of them, while no other change of settings is under way; change must not wait. The error is that
// of change, or 40403 if there is no such group.
func (c *Catalog) PatchGroup(ctx context.Context, name string, change func(*settings.Group) error) (*topic.Group, error) {
	if !c.config.Env.Calls.Begin() {
		return nil, refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return nil, err
	}
	defer c.UnlockAdmin()
	g, err := c.Group(name)
	if err != nil {
		return nil, err
	}
	s := *g.Settings()
	if err := change(&s); err != nil {
		return nil, err
	}
	if g, err = c.putGroupLocked(name, s, false); err != nil {
		return nil, err
	}
	c.config.Servers.ConsumerSettingsChanged(name)
	return g, nil
}

// CheckGroup returns the error that PutGroup would return for the settings of a group, as the group
// is now. It changes nothing. The error is 40000.
func (c *Catalog) CheckGroup(name string, s settings.Group) error {
	s = s.WithDefaults()
	if err := refusal.Setting("PutGroup", name, s.ValidateFor(name)); err != nil {
		return err
	}
	if err := letters.CheckRetryNames(name, &s.RetryTopic, c.eachGroup); err != nil {
		return err
	}
	g := c.FindGroup(name)
	if g == nil {
		return nil
	}
	var received []*topic.Consumption
	for _, sub := range c.SubscriptionsOf(g) {
		received = append(received, sub.Consumed())
	}
	if g.Settings().FIFO != s.FIFO && len(received) > 0 {
		return errFIFOFixed(name)
	}
	return c.config.Letters.CheckRetryTopics(g, received, &s.RetryTopic)
}

func errFIFOFixed(group string) error {
	return refusal.New(tidegate.CodeBadRequest, group, "the group has received, so fifo cannot change; delete the group, or use another one")
}

// putGroupLocked is PutGroup without its wait. automatic means that the group is auto-created. The
// caller holds the token.
func (c *Catalog) putGroupLocked(name string, s settings.Group, automatic bool) (*topic.Group, error) {
	if err := c.CheckGroup(name, s); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	g := c.FindGroup(name)
	if g != nil && reflect.DeepEqual(*g.Settings(), s) && g.Automatic() == automatic {
		return g, nil // nothing changes
	}
	number := c.number
	created := g == nil
	if created {
		number++
		g = topic.NewGroup(name, number, s)
	}
	v, err := topic.GroupRecord{ID: g.ID(), Automatic: automatic, Group: s}.Encode()
	if err != nil {
		return nil, refusal.Store(err)
	}
	before := *g.Settings()
	if before.FIFO != s.FIFO && !c.setFIFO(g, s.FIFO) { // a receive began since CheckGroup
		return nil, errFIFOFixed(name)
	}
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		w.PutGroup(name, v)
		w.PutNumber(number)
	}, nil).Wait(); err != nil {
		g.SetSettings(before)
		return nil, refusal.Store(err)
	}
	c.number = number
	g.SetSettings(s)
	c.autoGroups += toInt(automatic) - toInt(g.SetAutomatic(automatic))
	if created {
		c.addGroup(g)
	}
	return g, nil
}

// toInt returns 1 for true.
func toInt(counts bool) int {
	if counts {
		return 1
	}
	return 0
}

// EnsureGroup returns a consumer group, and creates it with default settings if there is none. The
// error is 40403 if the maximum of auto-created groups is reached.
func (c *Catalog) EnsureGroup(ctx context.Context, name string) (*topic.Group, error) {
	return c.groupOr(ctx, name, func() (*topic.Group, error) { return c.putGroupLocked(name, settings.Group{}, true) })
}

// GroupSettings returns the settings of a consumer group, or those that EnsureGroup would create it
// with. The errors are those of EnsureGroup.
func (c *Catalog) GroupSettings(ctx context.Context, name string) (settings.Group, error) {
	g, err := c.groupOr(ctx, name, func() (*topic.Group, error) { return nil, nil }) //nolint:nilnil // it creates none
	if err != nil {
		return settings.Group{}, err
	}
	if g == nil {
		return settings.Group{}.WithDefaults(), nil
	}
	return *g.Settings(), nil
}

// groupOr returns a group. If there is none and another one can be auto-created, it returns the
// result of create, which it calls with the token.
func (c *Catalog) groupOr(ctx context.Context, name string, create func() (*topic.Group, error)) (*topic.Group, error) {
	if g := c.FindGroup(name); g != nil {
		return g, nil
	}
	if err := tidegate.ValidateGroup(name); err != nil {
		return nil, err
	}
	if !c.config.Env.Calls.Begin() {
		return nil, refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return nil, err
	}
	defer c.UnlockAdmin()
	if g := c.FindGroup(name); g != nil {
		return g, nil
	}
	if c.autoGroups >= c.config.MaxAutoGroups {
		return nil, refusal.New(tidegate.CodeConsumerGroupNotFound, name, "the consumer group does not exist, and the limit of %d auto-created groups (max_auto_groups) is reached; "+
			"create it with PUT /v1/groups/%s, or delete unused groups", c.autoGroups, name)
	}
	return create()
}

// DeleteGroup removes a consumer group with its progress. Its dead letters stay, because they are
// messages of their own topic. The error is 40403 if there is no such group, or that of may, as in
// PutTopic.
func (c *Catalog) DeleteGroup(ctx context.Context, name string, may func(now *settings.Group) error) error {
	if !c.config.Env.Calls.Begin() {
		return refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return err
	}
	defer c.UnlockAdmin()
	g := c.FindGroup(name)
	if g == nil {
		return refusal.GroupNotFound(name)
	}
	if may != nil {
		if err := may(g.Settings()); err != nil {
			return err
		}
	}
	c.autoGroups -= toInt(g.Automatic())
	subs := c.removeGroup(g)
	defer c.config.Servers.ConsumerSettingsChanged(name) // the next receive creates the group with other settings
	defer c.config.Env.Failures.Forget(name)             // after the subscriptions are closed
	for _, s := range subs {
		s.Close(refusal.GroupNotFound(name))
	}
	for _, s := range subs {
		s.Topic().GroupConsumed(time.Now()) // messages that only this group needed
	}
	// The group is deleted before its progress, for the reason given in deleteTopic.
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		g.Delete()
		w.DeleteGroup(name, g.ID())
	}, nil).Wait(); err != nil {
		return refusal.Store(err)
	}
	return c.deleteProgress(subs)
}

// deleteProgress removes the records of closed subscriptions.
func (c *Catalog) deleteProgress(subs []*subscription.Subscription) error {
	if err := c.config.Store.Groups.Add(func(w *store.Batch) {
		for _, s := range subs {
			w.DeleteSubscription(s.Group().ID(), s.Topic().ID())
		}
	}, nil).Wait(); err != nil {
		return refusal.Store(err)
	}
	return nil
}
