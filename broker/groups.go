package broker

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// PutGroup creates a consumer group or changes its settings, and returns when
// that is on disk. Changes hold for messages under way; whether a group is
// FIFO cannot change once it has received (40000).
func (b *Broker) PutGroup(ctx context.Context, name string, c GroupConfig) (Group, error) {
	if !b.begin() {
		return Group{}, fail.Closed()
	}
	defer b.end()
	if err := tidegate.ValidateGroup(name); err != nil {
		return Group{}, err
	}
	if err := b.lockAdmin(ctx); err != nil {
		return Group{}, err
	}
	defer b.unlockAdmin()
	if _, err := b.makeGroup(name, c, false); err != nil {
		return Group{}, err
	}
	b.watchers.tell(name)
	return b.Group(name)
}

// CheckGroup returns what PutGroup would refuse the settings of a group with,
// as the group is now, and changes nothing.
func (b *Broker) CheckGroup(name string, c GroupConfig) error {
	c = c.WithDefaults()
	if err := fail.Setting("PutGroup", name, c.ValidateFor(name)); err != nil {
		return err
	}
	if err := b.checkOthersRetries(name, c.RetryTopic); err != nil {
		return err
	}
	g := b.group(name)
	switch {
	case g == nil:
		return nil
	case g.Settings().FIFO != c.FIFO && len(b.subscriptionsOf(g)) > 0:
		return fail.New(tidegate.CodeBadRequest, name, "it has received already, so fifo cannot change; delete the group, or use another one")
	}
	return b.checkRetryTopics(g, c.RetryTopic)
}

// makeGroup is PutGroup for who holds admin already.
func (b *Broker) makeGroup(name string, c GroupConfig, automatic bool) (*topic.Group, error) {
	if err := b.CheckGroup(name, c); err != nil {
		return nil, err
	}
	c = c.WithDefaults()
	g := b.group(name)
	if g != nil && reflect.DeepEqual(*g.Settings(), c) && g.Automatic() == automatic {
		return g, nil // nothing changes
	}
	number := b.number
	created := g == nil
	if created {
		number++
		g = topic.NewGroup(name, number, c)
	}
	v, err := topic.GroupRecord{ID: g.ID(), Automatic: automatic, Group: c}.Encode()
	if err != nil {
		return nil, fail.Store(err)
	}
	if err := b.store.Messages.Add(func(w *store.Batch) {
		w.PutGroup(name, v)
		w.PutNumber(number)
	}, nil).Wait(); err != nil {
		return nil, fail.Store(err)
	}
	b.number = number
	g.SetSettings(c)
	b.autoGroups += toInt(automatic) - toInt(g.SetAutomatic(automatic))
	if created {
		b.mu.Lock()
		b.groups[name] = g
		b.mu.Unlock()
	}
	return g, nil
}

// toInt is how much something counts.
func toInt(counts bool) int {
	if counts {
		return 1
	}
	return 0
}

// EnsureGroup makes a consumer group with default settings if there is none,
// and returns its settings. It is cheap if there is one. 40403 beyond Options.MaxAutoGroups.
func (b *Broker) EnsureGroup(ctx context.Context, name string) (GroupConfig, error) {
	g, err := b.ensureGroup(ctx, name)
	if err != nil {
		return GroupConfig{}, err
	}
	return *g.Settings(), nil
}

func (b *Broker) ensureGroup(ctx context.Context, name string) (*topic.Group, error) {
	if g := b.group(name); g != nil {
		return g, nil
	}
	if err := tidegate.ValidateGroup(name); err != nil {
		return nil, err
	}
	if !b.begin() {
		return nil, fail.Closed()
	}
	defer b.end()
	if err := b.lockAdmin(ctx); err != nil {
		return nil, err
	}
	defer b.unlockAdmin()
	if g := b.group(name); g != nil {
		return g, nil
	}
	if err := b.roomForGroupLocked(name); err != nil {
		return nil, err
	}
	return b.makeGroup(name, GroupConfig{}, true)
}

// roomForGroupLocked returns the error of one auto-created group too many. The caller holds admin.
func (b *Broker) roomForGroupLocked(name string) error {
	if b.autoGroups < b.opts.MaxAutoGroups {
		return nil
	}
	return fail.New(tidegate.CodeConsumerGroupNotFound, name, "there is no such consumer group, and %d were made by being received from, which is the limit (max_auto_groups): "+
		"make it with PUT /v1/groups/%s, or delete some that are not used", b.autoGroups, name)
}

// GroupSettings returns the settings of a consumer group, or the defaults that its first receive
// creates it with. It creates nothing. It returns 40403 if the first receive would.
func (b *Broker) GroupSettings(ctx context.Context, name string) (GroupConfig, error) {
	if g := b.group(name); g != nil {
		return *g.Settings(), nil
	}
	if err := tidegate.ValidateGroup(name); err != nil {
		return GroupConfig{}, err
	}
	if !b.begin() {
		return GroupConfig{}, fail.Closed()
	}
	defer b.end()
	if err := b.lockAdmin(ctx); err != nil {
		return GroupConfig{}, err
	}
	defer b.unlockAdmin()
	if g := b.group(name); g != nil {
		return *g.Settings(), nil
	}
	if err := b.roomForGroupLocked(name); err != nil {
		return GroupConfig{}, err
	}
	return GroupConfig{}.WithDefaults(), nil
}

// Group returns a consumer group; 40403 if there is none.
func (b *Broker) Group(name string) (Group, error) {
	g := b.group(name)
	if g == nil {
		if err := tidegate.ValidateGroup(name); err != nil {
			return Group{}, err
		}
		return Group{}, fail.GroupNotFound(name)
	}
	return b.describeGroup(g), nil
}

// Groups returns all consumer groups by name.
func (b *Broker) Groups() []Group {
	b.mu.RLock()
	gs := slices.Collect(maps.Values(b.groups))
	b.mu.RUnlock()
	out := make([]Group, 0, len(gs))
	for _, g := range gs {
		out = append(out, b.describeGroup(g))
	}
	slices.SortFunc(out, func(x, y Group) int { return strings.Compare(x.Name, y.Name) })
	return out
}

func (b *Broker) describeGroup(g *topic.Group) Group {
	d := Group{Name: g.Name(), AutoCreated: g.Automatic(), GroupConfig: *g.Settings(), DeadLetterTopics: b.deadLetterTopics(g)}
	for _, s := range b.subscriptionsOf(g) {
		at := s.Status()
		d.Topics = append(d.Topics, describeSubscription(s, &at))
	}
	slices.SortFunc(d.Topics, func(x, y Subscription) int { return strings.Compare(x.Topic, y.Topic) })
	return d
}

// DeleteGroup removes a consumer group with its progress. Its dead letters
// stay: they are messages of their own topic.
func (b *Broker) DeleteGroup(ctx context.Context, name string) error {
	if !b.begin() {
		return fail.Closed()
	}
	defer b.end()
	if err := b.lockAdmin(ctx); err != nil {
		return err
	}
	defer b.unlockAdmin()
	g := b.group(name)
	if g == nil {
		return fail.GroupNotFound(name)
	}
	b.autoGroups -= toInt(g.Automatic())
	b.mu.Lock()
	delete(b.groups, name)
	subs := b.subs.of(g.ID())
	for _, s := range subs {
		b.subs.remove(s)
		s.Topic().RemoveSubscription(s)
	}
	b.mu.Unlock()
	for _, s := range subs {
		s.Close(fail.GroupNotFound(name))
	}
	for _, s := range subs {
		s.Topic().GroupConsumed(time.Now()) // messages that only this group needed
	}
	// In this order for the reason that DeleteTopic has.
	if err := b.store.Messages.Add(func(w *store.Batch) {
		g.Delete()
		w.DeleteGroup(name, g.ID())
	}, nil).Wait(); err != nil {
		return fail.Store(err)
	}
	return b.deleteProgress(subs)
}

// deleteProgress removes what subscriptions that were closed have on disk.
func (b *Broker) deleteProgress(subs []*subscription.Subscription) error {
	if err := b.store.Groups.Add(func(w *store.Batch) {
		for _, s := range subs {
			w.DeleteSubscription(s.Group().ID(), s.Topic().ID())
		}
	}, nil).Wait(); err != nil {
		return fail.Store(err)
	}
	return nil
}
