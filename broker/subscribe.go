package broker

import (
	"context"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// subscribe returns the subscription of a group to a topic, and creates it if necessary. A new one
// begins at the position of GroupConfig.Start.
func (b *Broker) subscribe(ctx context.Context, groupName, topicName string) (*subscription.Subscription, error) {
	t, err := b.topic(topicName)
	if err != nil {
		return nil, err
	}
	g, err := b.ensureGroup(ctx, groupName)
	if err != nil {
		return nil, err
	}
	key := [2]uint32{g.ID(), t.ID()}
	b.mu.RLock()
	s := b.subs[key]
	b.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	if g.StartsLate(t) {
		return b.subscribeLate(ctx, g, t)
	}
	// The record precedes the first delivery, so that retention never treats messages as consumed
	// by all groups that this group has not consumed, not even after a power failure.
	if err := b.noteSubscription(ctx, g, t); err != nil {
		return nil, err
	}
	return b.register(subscription.New(b.env, g, t, false))
}

// noteSubscription writes that a group receives from a topic.
func (b *Broker) noteSubscription(ctx context.Context, g *topic.Group, t *topic.Topic) error {
	return fail.StoreUnless(ctx, b.store.Messages.Add(func(w *store.Batch) {
		if !t.Deleted() && !g.Deleted() {
			w.PutSubscription(g.ID(), t.ID())
		}
	}, nil).WaitContext(ctx))
}

// register adds a subscription and returns it, or returns the existing one. An error means that the
// topic or the group was deleted.
func (b *Broker) register(s *subscription.Subscription) (*subscription.Subscription, error) {
	s, err := b.addIfWanted(s)
	if err != nil { // the deletion of the topic may not have removed this record
		b.store.Messages.Add(func(w *store.Batch) { w.DeleteSubscriptionOfTopic(s.Group().ID(), s.Topic().ID()) }, nil)
		return nil, err
	}
	s.AddQueues() // the topic may have grown before the subscription was added
	return s, nil
}

func (b *Broker) addIfWanted(s *subscription.Subscription) (*subscription.Subscription, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, t := s.Group(), s.Topic()
	switch before := b.subs[[2]uint32{g.ID(), t.ID()}]; {
	case before != nil:
		return before, nil
	case b.topics[t.Name()] != t:
		return s, fail.TopicNotFound(t.Name())
	case b.groups[g.Name()] != g:
		return s, fail.GroupNotFound(g.Name())
	}
	b.addSubscription(s)
	return s, nil
}

// addSubscription adds a new subscription. b.mu is held.
func (b *Broker) addSubscription(s *subscription.Subscription) {
	b.subs[[2]uint32{s.Group().ID(), s.Topic().ID()}] = s
	s.Topic().AddSubscription(s)
}

// subscribeLate adds a subscription that begins with the next message. The cursors are on disk
// before the subscription is used. Otherwise a restart would deliver all earlier messages.
func (b *Broker) subscribeLate(ctx context.Context, g *topic.Group, t *topic.Topic) (*subscription.Subscription, error) {
	if err := b.lockAdmin(ctx); err != nil { // one call creates the subscription
		return nil, err
	}
	defer b.unlockAdmin()
	b.mu.RLock()
	s := b.subs[[2]uint32{g.ID(), t.ID()}]
	b.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	s = subscription.New(b.env, g, t, false)
	if err := fail.StoreUnless(ctx, b.store.Messages.Add(func(*store.Batch) {
		s.StartAtEnd()
	}, nil).WaitContext(ctx)); err != nil {
		return nil, err
	}
	// Only now, so that no cursor on disk is past the last message.
	write, _ := s.Update(func(*consume.Progress) {})
	if err := write.Wait(); err != nil {
		return nil, fail.Store(err)
	}
	if err := b.noteSubscription(ctx, g, t); err != nil {
		return nil, err
	}
	return b.register(s)
}

// newEnv returns the parts of the broker that subscriptions use.
func (b *Broker) newEnv() *subscription.Env {
	return &subscription.Env{
		Store: b.store, Logger: b.logger, Reads: subscription.NewReads(), Endpoint: b.name, Host: b.host,
		MaxInvisible: b.opts.MaxInvisibleDuration, MaxHeld: b.opts.maxHeld, LastHeartbeat: b.owners.lastSeen,
		Life: b.life, Begin: b.begin, End: b.end, CarryOut: b.carryOut,
		Depart: b.depart, AwaitParked: b.letters.AwaitParked, RetryTopic: b.retrySubscription,
		CountCold: b.limits.CountCold, Damaged: func(messages int64) { b.counters.damaged.Add(messages) },
		Lateness: &b.counters.lateness,
	}
}
