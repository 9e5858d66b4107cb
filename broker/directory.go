package broker

import (
	"context"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A directory has the topics, groups and subscriptions of a broker.
type directory struct {
	// admin is a token that is held while settings are changed, also during their I/O.
	admin chan struct{}

	mu     sync.RWMutex
	topics map[string]*topic.Topic // guarded by mu
	groups map[string]*topic.Group // guarded by mu
	subs   subscriptionsByID       // guarded by mu

	number     uint32 // guarded by admin: the last one given to a topic or group
	autoGroups int    // guarded by admin: how many groups are automatic
}

func newDirectory() directory {
	return directory{admin: make(chan struct{}, 1), topics: map[string]*topic.Topic{}, groups: map[string]*topic.Group{}, subs: subscriptionsByID{}}
}

// lockAdmin takes the token admin, or returns the cause of ctx if ctx ends first.
func (d *directory) lockAdmin(ctx context.Context) error {
	select {
	case d.admin <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *directory) unlockAdmin() { <-d.admin }

func (d *directory) topic(name string) (*topic.Topic, error) {
	d.mu.RLock()
	t := d.topics[name]
	d.mu.RUnlock()
	if t == nil {
		if err := tidegate.ValidateTopic(name); err != nil {
			return nil, err
		}
		return nil, fail.TopicNotFound(name)
	}
	return t, nil
}

func (d *directory) topicsByID() map[uint32]*topic.Topic {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := make(map[uint32]*topic.Topic, len(d.topics))
	for _, t := range d.topics {
		out[t.ID()] = t
	}
	return out
}

func (d *directory) group(name string) *topic.Group {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.groups[name]
}

func (d *directory) subscriptionsOf(g *topic.Group) []*subscription.Subscription {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.subs.of(g.ID())
}

// finder implements letters.Directory.
type finder struct{ directory *directory }

func (f finder) FindTopic(name string) *topic.Topic {
	f.directory.mu.RLock()
	defer f.directory.mu.RUnlock()
	return f.directory.topics[name]
}

func (f finder) FindGroup(name string) *topic.Group { return f.directory.group(name) }

// subscriptionsByID finds subscriptions by group and topic.
type subscriptionsByID map[[2]uint32]*subscription.Subscription

func (m subscriptionsByID) remove(s *subscription.Subscription) {
	delete(m, [2]uint32{s.Group().ID(), s.Topic().ID()})
}

func (m subscriptionsByID) all() []*subscription.Subscription {
	out := make([]*subscription.Subscription, 0, len(m))
	for _, s := range m {
		out = append(out, s)
	}
	return out
}

// to returns the subscriptions to a topic.
func (m subscriptionsByID) to(topic uint32) []*subscription.Subscription {
	var out []*subscription.Subscription
	for k, s := range m {
		if k[1] == topic {
			out = append(out, s)
		}
	}
	return out
}

// of returns the subscriptions of a group.
func (m subscriptionsByID) of(group uint32) []*subscription.Subscription {
	var out []*subscription.Subscription
	for k, s := range m {
		if k[0] == group {
			out = append(out, s)
		}
	}
	return out
}
