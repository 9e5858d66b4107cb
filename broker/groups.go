package broker

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A group is the running side of a Group.
type group struct {
	id     uint32
	name   string
	config atomic.Pointer[GroupConfig]

	automatic atomic.Bool // made by being received from; nobody has put it

	deleted atomic.Bool // changed only within the message log's Add
}

type storedGroup struct {
	ID        uint32 `json:"id"`
	Automatic bool   `json:"automatic,omitempty"`
	GroupConfig
}

func newGroup(name string, id uint32, c GroupConfig) *group {
	g := &group{id: id, name: name}
	g.config.Store(&c)
	return g
}

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
	case g.config.Load().FIFO != c.FIFO && len(b.subscriptionsOf(g)) > 0:
		return fail.New(tidegate.CodeBadRequest, name, "it has received already, so fifo cannot change; delete the group, or use another one")
	}
	return b.checkRetryTopics(g, c.RetryTopic)
}

// makeGroup is PutGroup for who holds admin already.
func (b *Broker) makeGroup(name string, c GroupConfig, automatic bool) (*group, error) {
	if err := b.CheckGroup(name, c); err != nil {
		return nil, err
	}
	c = c.WithDefaults()
	g := b.group(name)
	if g != nil && reflect.DeepEqual(*g.config.Load(), c) && g.automatic.Load() == automatic {
		return g, nil // nothing changes
	}
	number := b.number
	created := g == nil
	if created {
		number++
		g = newGroup(name, number, c)
	}
	v, err := json.Marshal(storedGroup{g.id, automatic, c})
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
	g.config.Store(&c)
	b.autoGroups += toInt(automatic) - toInt(g.automatic.Swap(automatic))
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
	return *g.config.Load(), nil
}

func (b *Broker) ensureGroup(ctx context.Context, name string) (*group, error) {
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
		return *g.config.Load(), nil
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
		return *g.config.Load(), nil
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

func (b *Broker) describeGroup(g *group) Group {
	d := Group{Name: g.name, AutoCreated: g.automatic.Load(), GroupConfig: *g.config.Load(), DeadLetterTopics: b.deadLetterTopics(g)}
	for _, s := range b.subscriptionsOf(g) {
		d.Topics = append(d.Topics, s.describe())
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
	b.autoGroups -= toInt(g.automatic.Load())
	b.mu.Lock()
	delete(b.groups, name)
	subs := b.subs.of(g.id)
	for _, s := range subs {
		b.subs.remove(s)
		others := slices.DeleteFunc(slices.Clone(*s.topic.subs.Load()), func(o *subscription) bool { return o == s })
		s.topic.subs.Store(&others)
	}
	b.mu.Unlock()
	for _, s := range subs {
		s.close()
	}
	for _, s := range subs {
		if s.topic.watched.Load() { // what only this group needed
			b.retention.wake(s.topic, time.Now().Add(retention.Pause))
		}
	}
	// In this order for the reason that DeleteTopic has.
	if err := b.store.Messages.Add(func(w *store.Batch) {
		g.deleted.Store(true)
		w.DeleteGroup(name, g.id)
	}, nil).Wait(); err != nil {
		return fail.Store(err)
	}
	return b.deleteProgress(subs)
}

// deleteProgress removes what subscriptions that were closed have on disk.
func (b *Broker) deleteProgress(subs []*subscription) error {
	if err := b.store.Groups.Add(func(w *store.Batch) {
		for _, s := range subs {
			w.DeleteSubscription(s.group.id, s.topic.id)
		}
	}, nil).Wait(); err != nil {
		return fail.Store(err)
	}
	return nil
}
