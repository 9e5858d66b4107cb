package broker

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// subscribe returns the subscription of a group to a topic; it begins where
// GroupConfig.Start says.
func (b *Broker) subscribe(ctx context.Context, groupName, topicName string) (*subscription, error) {
	t, err := b.topic(topicName)
	if err != nil {
		return nil, err
	}
	g, err := b.ensureGroup(ctx, groupName)
	if err != nil {
		return nil, err
	}
	key := [2]uint32{g.id, t.id}
	b.mu.RLock()
	s := b.subs[key]
	b.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	if g.startsLate(t) {
		return b.subscribeLate(ctx, g, t)
	}
	// Known before it has consumed anything: what it has not consumed is not
	// removed as consumed by all, not even after a power failure.
	if err := b.noteSubscription(ctx, g, t); err != nil {
		return nil, err
	}
	return b.register(newSubscription(b, g, t))
}

// noteSubscription writes that a group receives from a topic.
func (b *Broker) noteSubscription(ctx context.Context, g *group, t *topic) error {
	return storeUnless(ctx, b.store.Messages.Add(func(w *store.Batch) {
		if !t.deleted.Load() && !g.deleted.Load() {
			w.PutSubscription(g.id, t.id)
		}
	}, nil).WaitContext(ctx))
}

// register adds a subscription, unless there is one already, which it then
// returns. An error means that its topic or group was deleted.
func (b *Broker) register(s *subscription) (*subscription, error) {
	s, err := b.addIfWanted(s)
	if err != nil { // who deletes the topic may not have seen this group
		b.store.Messages.Add(func(w *store.Batch) { w.DeleteSubscriptionOfTopic(s.group.id, s.topic.id) }, nil)
		return nil, err
	}
	s.addQueues() // from now on it is among those that grow; the topic may have grown before
	return s, nil
}

func (b *Broker) addIfWanted(s *subscription) (*subscription, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, t := s.group, s.topic
	switch before := b.subs[[2]uint32{g.id, t.id}]; {
	case before != nil:
		return before, nil
	case b.topics[t.name] != t:
		return s, fail.TopicNotFound(t.name)
	case b.groups[g.name] != g:
		return s, fail.GroupNotFound(g.name)
	}
	b.addSubscription(s)
	return s, nil
}

// addSubscription adds one that is not there. b.mu is held.
func (b *Broker) addSubscription(s *subscription) {
	b.subs[[2]uint32{s.group.id, s.topic.id}] = s
	subs := append(slices.Clone(*s.topic.subs.Load()), s)
	s.topic.subs.Store(&subs)
}

// startsLate reports whether a group begins at the topic's end: not among dead
// letters, which are for whoever comes, nor where its own retries are.
func (g *group) startsLate(t *topic) bool {
	c := g.config.Load()
	if c.Start != StartLatest || isDeadLetterTopic(t.name) || t.automatic.Load() {
		return false
	}
	_, retry := c.RetryTopic.Original(t.name, g.name)
	return !retry
}

// subscribeLate adds a subscription that begins with the next message. That is
// on disk before it is used, or a restart would bring all that was there before.
func (b *Broker) subscribeLate(ctx context.Context, g *group, t *topic) (*subscription, error) {
	if err := b.lockAdmin(ctx); err != nil { // nobody else has the same in mind
		return nil, err
	}
	defer b.unlockAdmin()
	b.mu.RLock()
	s := b.subs[[2]uint32{g.id, t.id}]
	b.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	s = newSubscription(b, g, t)
	if err := storeUnless(ctx, b.store.Messages.Add(func(*store.Batch) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, r := range s.readers {
			s.progress.StartAt(i, store.Mark{Offset: r.queue.nextOffset, Bytes: r.queue.nextBytes})
		}
	}, nil).WaitContext(ctx)); err != nil {
		return nil, err
	}
	var write *store.PendingWrite
	s.locked(func() { write = s.apply(time.Now()).write }) // only now: no cursor on disk is past the last message
	if err := write.Wait(); err != nil {
		return nil, fail.Store(err)
	}
	if err := b.noteSubscription(ctx, g, t); err != nil {
		return nil, err
	}
	return b.register(s)
}
