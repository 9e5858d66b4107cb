package broker

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// PutGroup creates a consumer group or changes its settings, and returns when this is on disk. The
// change also applies to messages in flight. The error is 40000 for invalid settings, and for
// another value of FIFO after the group has received.
func (b *Broker) PutGroup(ctx context.Context, name string, c settings.Group) (status.Group, error) {
	return b.putGroup(ctx, name, c, nil)
}

// PatchGroup changes the settings of a consumer group, and returns when this is on disk. It calls
// change with a copy of the settings, while no other change of settings is under way; change must
// not wait. An auto-created group becomes permanent. The error is that of change, 40403 if there is
// no such group, or one of PutGroup; then nothing has changed.
func (b *Broker) PatchGroup(ctx context.Context, name string, change func(*settings.Group) error) (status.Group, error) {
	g, err := b.catalog.PatchGroup(ctx, name, change)
	if err != nil {
		return status.Group{}, err
	}
	return b.describeOneGroup(g), nil
}

// CheckGroup returns the error that PutGroup would return for the settings, as the group is now. It
// changes nothing.
func (b *Broker) CheckGroup(name string, c settings.Group) error {
	return b.catalog.CheckGroup(name, c)
}

// EnsureGroup creates a consumer group with default settings if there is none, and returns its
// settings. It is cheap if the group exists. The error is 40403 if Options.MaxAutoGroups is
// reached.
func (b served) EnsureGroup(ctx context.Context, name string) (settings.Group, error) {
	g, err := b.catalog.EnsureGroup(ctx, name)
	if err != nil {
		return settings.Group{}, err
	}
	return *g.Settings(), nil
}

// GroupSettings returns the settings of a consumer group. If there is no such group, it returns the
// defaults with which the first receive would create the group, or 40403 if Options.MaxAutoGroups
// is reached. It creates nothing.
func (b served) GroupSettings(ctx context.Context, name string) (settings.Group, error) {
	return b.catalog.GroupSettings(ctx, name)
}

// Group returns a consumer group. The error is 40403 if there is no such group.
func (b *Broker) Group(name string) (status.Group, error) {
	g, err := b.catalog.Group(name)
	if err != nil {
		return status.Group{}, err
	}
	return b.describeOneGroup(g), nil
}

// Groups returns all consumer groups by name.
func (b *Broker) Groups() []status.Group {
	gs := b.catalog.AllGroups()
	out := make([]status.Group, 0, len(gs))
	looks := new(int64(engine.MaxLook))
	for _, g := range gs {
		out = append(out, b.describeGroup(g, looks))
	}
	slices.SortFunc(out, func(x, y status.Group) int { return strings.Compare(x.Name, y.Name) })
	return out
}

// describeGroup returns the settings and the state of a group. looks bounds the messages that it
// reads.
func (b *Broker) describeGroup(g *engine.Group, looks *int64) status.Group {
	d := status.Group{Name: g.Name(), AutoCreated: g.Automatic(), Group: *g.Settings(), DeadLetterTopics: b.deadLetterTopics(g)}
	now := time.Now()
	for _, s := range b.catalog.SubscriptionsOf(g) {
		s.LookAhead(looks)
		at := s.Status()
		sub := b.describeSubscription(s, &at)
		sub.Why = whyOf(&at, sub.Backlog.Messages, b.limits.Check(s.Topic(), now, nil) != nil, now)
		d.Topics = append(d.Topics, sub)
	}
	slices.SortFunc(d.Topics, func(x, y status.Subscription) int { return strings.Compare(x.Topic, y.Topic) })
	return d
}

// DeleteGroup removes a consumer group with its progress, and returns when this is on disk. Its
// dead letters stay, because they are messages of their own topic. The error is 40403 if there is
// no such group.
func (b *Broker) DeleteGroup(ctx context.Context, name string) error {
	return b.catalog.DeleteGroup(ctx, name, nil)
}
