package catalog

import (
	"context"
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
)

// Subscribe returns the subscription of a group to a topic, and creates the subscription and the
// group if necessary. A new subscription begins at the position of the group's Start setting. The
// error is 40402 if there is no such topic, and otherwise that of EnsureGroup.
func (c *Catalog) Subscribe(ctx context.Context, groupName, topicName string) (*subscription.Subscription, error) {
	t, err := c.Topic(topicName)
	if err != nil {
		return nil, err
	}
	g, err := c.EnsureGroup(ctx, groupName)
	if err != nil {
		return nil, err
	}
	if s := c.Find(g.ID(), t.ID()); s != nil {
		return s, nil
	}
	if g.StartsLate(t) {
		return c.subscribeLate(ctx, g, t)
	}
	running, first := c.creations.begin([2]uint32{g.ID(), t.ID()})
	if !first {
		return running.wait(ctx)
	}
	return c.carryOut(ctx, func() (*subscription.Subscription, error) {
		defer c.creations.end(running)
		running.created, running.err = c.create(g, t)
		return running.created, running.err
	})
}

// create creates a subscription that begins at the oldest message. The record is on disk before the
// group consumes anything. Retention by consumption then keeps the unconsumed messages of the
// group, also after a power failure.
func (c *Catalog) create(g *topic.Group, t *topic.Topic) (*subscription.Subscription, error) {
	if err := c.noteSubscription(g, t); err != nil {
		return nil, err
	}
	return c.Register(subscription.New(c.config.Env, g, t, false))
}

// carryOut creates a subscription, to the end even if ctx ends before. A record without its
// subscription would be a subscription after the next restart.
func (c *Catalog) carryOut(ctx context.Context, create func() (*subscription.Subscription, error)) (*subscription.Subscription, error) {
	var created *subscription.Subscription
	err := c.config.Env.CarryOut(ctx, func() (err error) {
		created, err = create()
		return err
	})
	switch cause := context.Cause(ctx); {
	case err == nil:
		return created, nil
	case cause != nil && errors.Is(err, cause): // create may still run
		return nil, cause
	}
	return nil, err
}

// noteSubscription writes the record that a group receives from a topic.
func (c *Catalog) noteSubscription(g *topic.Group, t *topic.Topic) error {
	err := c.config.Store.Messages.Add(func(w *store.Batch) {
		if !t.Deleted() && !g.Deleted() {
			w.PutSubscription(g.ID(), t.ID())
		}
	}, nil).Wait()
	if err != nil {
		return refusal.Store(err)
	}
	return nil
}

// Register adds a subscription whose record is written, and returns it. If the group has another
// subscription to the topic, Register returns that one. An error means that the topic or the group
// was deleted.
func (c *Catalog) Register(s *subscription.Subscription) (*subscription.Subscription, error) {
	added, err := c.addSubscription(s)
	if err != nil || s.Topic().Deleted() { // the deletion of the topic may not have seen this subscription
		c.config.Store.Messages.Add(func(w *store.Batch) { w.DeleteSubscriptionOfTopic(s.Group().ID(), s.Topic().ID()) }, nil)
	}
	if err != nil {
		return nil, err
	}
	// PutTopic adds later queues. It may have added some before the subscription was registered.
	added.AddQueues()
	return added, nil
}

// subscribeLate adds a subscription that begins with the next message. The position is on disk
// before the subscription is used. Otherwise the group would receive all older messages after a
// restart.
func (c *Catalog) subscribeLate(ctx context.Context, g *topic.Group, t *topic.Topic) (*subscription.Subscription, error) {
	return c.carryOut(ctx, func() (*subscription.Subscription, error) {
		if err := c.LockAdmin(ctx); err != nil { // one goroutine creates the subscription
			return nil, err
		}
		defer c.UnlockAdmin()
		if s := c.Find(g.ID(), t.ID()); s != nil {
			return s, nil
		}
		return c.createLate(g, t)
	})
}

func (c *Catalog) createLate(g *topic.Group, t *topic.Topic) (*subscription.Subscription, error) {
	s := subscription.New(c.config.Env, g, t, false)
	if err := c.config.Store.Messages.Add(func(*store.Batch) { s.StartAtEnd() }, nil).Wait(); err != nil {
		return nil, refusal.Store(err)
	}
	// After the wait above, the messages before the cursor are on disk: no stored cursor is past
	// the last message.
	write, _ := s.Update(func(*consume.Progress) {})
	if err := write.Wait(); err != nil {
		return nil, refusal.Store(err)
	}
	if err := c.noteSubscription(g, t); err != nil {
		return nil, err
	}
	return c.Register(s)
}

// RetrySubscriptions returns the group's subscriptions to its retry topics for the topic of s: at
// most its retry topic by settings, which it creates if necessary, and that of redriven messages.
func (c *Catalog) RetrySubscriptions(ctx context.Context, s *subscription.Subscription) (subs []*subscription.Subscription, err error) {
	if r, err := c.retrySubscription(ctx, s); err != nil {
		return nil, err
	} else if r != nil {
		subs = append(subs, r)
	}
	name := s.Group().Settings().RetryTopic.RedriveName(s.Topic().Name(), s.Group().Name())
	if c.FindTopic(name) == nil {
		return subs, nil
	}
	r, err := c.Subscribe(ctx, s.Group().Name(), name)
	switch {
	case err == nil:
		subs = append(subs, r)
	case !errors.Is(err, tidegate.ErrNotFound): // else just deleted
		return nil, err
	}
	return subs, nil
}

// RedriveTopic returns the topic of the messages of a topic that are redriven to a group alone. It
// creates the topic and the group's subscription to it if necessary, and has the receives of the
// group that wait for the original topic wait for both. The error is 40402 or 40403 if the original
// topic or the group does not exist, and otherwise that of OwnTopic.
func (c *Catalog) RedriveTopic(ctx context.Context, g *topic.Group, original *topic.Topic) (*topic.Topic, error) {
	t, err := c.OwnTopic(ctx, g.Settings().RetryTopic.RedriveName(original.Name(), g.Name()), settings.Topic{Queues: 1}, false)
	if err != nil {
		return nil, err
	}
	if _, err := c.Subscribe(ctx, g.Name(), t.Name()); err != nil {
		return nil, err
	}
	if s := c.Find(g.ID(), original.ID()); s != nil {
		s.AddSource()
	}
	return t, nil
}

// retrySubscription returns the group's subscription to its retry topic for the topic of s, and
// creates both if necessary. It returns nil if the group has no such retry topic.
func (c *Catalog) retrySubscription(ctx context.Context, s *subscription.Subscription) (*subscription.Subscription, error) {
	retry := s.Group().Settings().RetryTopic
	if !retry.Enabled {
		return nil, nil //nolint:nilnil // most groups have none, and nothing is wrong then
	}
	if _, itself := retry.Original(s.Topic().Name(), s.Group().Name()); itself {
		return nil, nil //nolint:nilnil // likewise
	}
	name := retry.RetryName(s.Topic().Name(), s.Group().Name())
	if tidegate.ValidateTopic(name) != nil {
		return nil, nil //nolint:nilnil,nilerr // the names are too long together: ReconsumeLater reports it
	}
	if _, err := c.OwnTopic(ctx, name, settings.Topic{Queues: 1}, false); err != nil {
		return nil, err
	}
	r, err := c.Subscribe(ctx, s.Group().Name(), name)
	if errors.Is(err, tidegate.ErrNotFound) { // just deleted: the next receive creates it again
		return nil, nil //nolint:nilnil // likewise
	}
	return r, err
}
