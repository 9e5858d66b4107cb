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

// PutTopic creates a topic or changes its settings, and returns when this is on disk. The error is
// 40000 for invalid settings, another type than before, or fewer queues than before.
func (b *Broker) PutTopic(ctx context.Context, name string, c settings.Topic) (status.Topic, error) {
	return b.putTopic(ctx, name, c, nil)
}

// TopicSettings returns the settings of a topic, with defaults. The error is 40402 if there is no
// such topic. The call is cheap.
func (b *Broker) TopicSettings(name string) (settings.Topic, error) {
	t, err := b.catalog.Topic(name)
	if err != nil {
		return settings.Topic{}, err
	}
	return *t.Settings(), nil
}

// Topic returns a topic. The error is 40402 if there is no such topic.
func (b *Broker) Topic(name string) (status.Topic, error) {
	t, err := b.catalog.Topic(name)
	if err != nil {
		return status.Topic{}, err
	}
	return b.describeOne(t), nil
}

// Topics returns all topics by name, including topics of dead letters.
func (b *Broker) Topics() []status.Topic {
	ts, _ := b.catalog.All()
	out := make([]status.Topic, 0, len(ts))
	for _, t := range ts {
		out = append(out, b.describe(t))
	}
	slices.SortFunc(out, func(x, y status.Topic) int { return strings.Compare(x.Name, y.Name) })
	return out
}

func (b *Broker) describe(t *engine.Topic) status.Topic {
	stored, subs := t.Stored(), t.Subscriptions()
	d := status.Topic{
		Name: t.Name(), AutoCreated: t.Automatic(), Topic: *t.Settings(),
		StoredMessages: stored.Messages, StoredBytes: stored.Bytes, Backlog: status.Backlog(t.Backlog()),
		AcceptedMessages: t.Accepted().Messages, HalfMessages: t.Counters().Half.Load(),
	}
	d.DelayedMessages, d.DelayedBytes = t.Counters().Delayed()
	if len(subs) == 0 {
		d.Backlog = status.Backlog{Messages: d.StoredMessages, Bytes: d.StoredBytes}
	}
	for _, s := range subs {
		d.Groups = append(d.Groups, s.Consumed().Group().Name())
	}
	slices.Sort(d.Groups)
	now := time.Now()
	if b.calls.Begin() {
		if b.store.Broken() == nil {
			b.limits.Observe(t, now)
		}
		b.calls.End()
	}
	d.Throttle = b.limits.Check(t, now, nil)
	return d
}

// DeleteTopic removes a topic with its messages and the progress of groups in it, and returns when
// this is on disk. The error is 40402 if there is no such topic.
func (b *Broker) DeleteTopic(ctx context.Context, name string) error {
	return b.catalog.DeleteTopic(ctx, name, nil)
}
