package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
)

// A Directory has the topics, groups and subscriptions of a broker. Several goroutines can call its
// methods at the same time. Each method except LockAdmin takes one lock, and holds it only for one
// look or change.
type Directory struct {
	admin    chan struct{} // a token
	activity *Activity

	mu     sync.RWMutex
	topics map[string]*Topic           // guarded by mu
	groups map[string]*Group           // guarded by mu
	subs   map[[2]uint32]*Subscription // guarded by mu: by the numbers of group and topic

	sorted atomic.Pointer[Sorted] // nil after each change
}

// Sorted has the contents of a Directory in the order of lists.
type Sorted struct {
	Topics        []*Topic        // by name
	Groups        []*Group        // by name
	Subscriptions []*Subscription // by the names of group and topic

	// TopicOf has the index in Topics of the topic of each subscription.
	TopicOf []int
}

// NewDirectory returns an empty directory. activity gets a note of each new or deleted topic, group
// and subscription. It may be nil.
func NewDirectory(activity *Activity) *Directory {
	return &Directory{
		activity: activity, admin: make(chan struct{}, 1), topics: map[string]*Topic{}, groups: map[string]*Group{},
		subs: map[[2]uint32]*Subscription{},
	}
}

// LockAdmin waits until no other change of settings is under way, and excludes other changes until
// UnlockAdmin. It returns the cause of ctx if ctx ends first. The caller holds no lock and no other
// token.
func (d *Directory) LockAdmin(ctx context.Context) error {
	select {
	case d.admin <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// UnlockAdmin ends LockAdmin.
func (d *Directory) UnlockAdmin() { <-d.admin }

// Subscriptions returns the lock that is held while the queues or the subscriptions of a topic
// change.
func (d *Directory) Subscriptions() sync.Locker { return &d.mu }

// Topic returns a topic. The error is 40402 if there is none, or that of an invalid name.
func (d *Directory) Topic(name string) (*Topic, error) {
	t := d.FindTopic(name)
	if t == nil {
		if err := tidegate.ValidateTopic(name); err != nil {
			return nil, err
		}
		return nil, refusal.TopicNotFound(name)
	}
	return t, nil
}

// Group returns a group. The error is 40403 if there is none, or that of an invalid name.
func (d *Directory) Group(name string) (*Group, error) {
	g := d.FindGroup(name)
	if g == nil {
		if err := tidegate.ValidateGroup(name); err != nil {
			return nil, err
		}
		return nil, refusal.GroupNotFound(name)
	}
	return g, nil
}

// FindTopic returns a topic, and nil if there is none.
func (d *Directory) FindTopic(name string) *Topic {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.topics[name]
}

// FindGroup returns a group, and nil if there is none.
func (d *Directory) FindGroup(name string) *Group {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.groups[name]
}

// Find returns the subscription of a group to a topic by their numbers, and nil if there is none.
func (d *Directory) Find(group, topic uint32) *Subscription {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.subs[[2]uint32{group, topic}]
}

// All returns all topics and subscriptions, in no order.
func (d *Directory) All() ([]*Topic, []*Subscription) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Collect(maps.Values(d.topics)), slices.Collect(maps.Values(d.subs))
}

// Sorted returns all topics, groups and subscriptions in order. The caller must not change the
// slices, which serve all calls until the next change.
func (d *Directory) Sorted() *Sorted {
	if s := d.sorted.Load(); s != nil {
		return s
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	s := &Sorted{
		Topics: slices.Collect(maps.Values(d.topics)), Groups: slices.Collect(maps.Values(d.groups)), Subscriptions: slices.Collect(maps.Values(d.subs)),
		TopicOf: make([]int, len(d.subs)),
	}
	slices.SortFunc(s.Topics, func(x, y *Topic) int { return strings.Compare(x.Name(), y.Name()) })
	slices.SortFunc(s.Groups, func(x, y *Group) int { return strings.Compare(x.Name(), y.Name()) })
	slices.SortFunc(s.Subscriptions, func(x, y *Subscription) int {
		return cmp.Or(strings.Compare(x.Group().Name(), y.Group().Name()), strings.Compare(x.Topic().Name(), y.Topic().Name()))
	})
	index := make(map[*Topic]int, len(s.Topics))
	for i, t := range s.Topics {
		index[t] = i
	}
	for i, sub := range s.Subscriptions {
		s.TopicOf[i] = index[sub.Topic()]
	}
	d.sorted.Store(s) // no change runs meanwhile
	return s
}

// AllGroups returns all groups, in no order.
func (d *Directory) AllGroups() []*Group {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Collect(maps.Values(d.groups))
}

// eachGroup is a sequence of all groups. It copies the list only if it is read.
func (d *Directory) eachGroup(yield func(*Group) bool) {
	slices.Values(d.AllGroups())(yield)
}

// TopicsByID returns all topics by number.
func (d *Directory) TopicsByID() map[uint32]*Topic {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := make(map[uint32]*Topic, len(d.topics))
	for _, t := range d.topics {
		out[t.ID()] = t
	}
	return out
}

// PendingTopics returns a function that finds a topic by number among the topics of now.
func (d *Directory) PendingTopics() func(id uint32) pendingTopic {
	topics := d.TopicsByID()
	return func(id uint32) pendingTopic {
		if t := topics[id]; t != nil {
			return t
		}
		return nil
	}
}

// SubscriptionsOf returns the subscriptions of a group, in no order.
func (d *Directory) SubscriptionsOf(g *Group) []*Subscription {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.selectLocked(func(group, _ uint32) bool { return group == g.ID() })
}

// selectLocked returns the subscriptions with certain numbers of group and topic. mu is held.
func (d *Directory) selectLocked(wanted func(group, topic uint32) bool) (out []*Subscription) {
	for k, s := range d.subs {
		if wanted(k[0], k[1]) {
			out = append(out, s)
		}
	}
	return out
}

// AddTopic adds a topic.
func (d *Directory) AddTopic(t *Topic) {
	defer d.activity.Note()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sorted.Store(nil)
	d.topics[t.Name()] = t
}

// RemoveTopic removes a topic and its subscriptions, and returns these.
func (d *Directory) RemoveTopic(t *Topic) []*Subscription {
	defer d.activity.Note()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sorted.Store(nil)
	delete(d.topics, t.Name())
	subs := d.selectLocked(func(_, topic uint32) bool { return topic == t.ID() })
	d.removeLocked(subs)
	return subs
}

// addGroup adds a group.
func (d *Directory) addGroup(g *Group) {
	defer d.activity.Note()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sorted.Store(nil)
	d.groups[g.Name()] = g
}

// setFIFO changes whether a group is FIFO, and returns false if the group has a subscription. A
// subscription that is added later delivers by the new value.
func (d *Directory) setFIFO(g *Group, fifo bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.selectLocked(func(group, _ uint32) bool { return group == g.ID() })) > 0 {
		return false
	}
	s := *g.Settings()
	s.FIFO = fifo
	g.SetSettings(s)
	return true
}

// removeGroup removes a group and its subscriptions, also from their topics, and returns these.
func (d *Directory) removeGroup(g *Group) []*Subscription {
	defer d.activity.Note()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sorted.Store(nil)
	delete(d.groups, g.Name())
	subs := d.selectLocked(func(group, _ uint32) bool { return group == g.ID() })
	d.removeLocked(subs)
	for _, s := range subs {
		s.Topic().RemoveSubscription(s)
	}
	return subs
}

// removeLocked removes subscriptions. mu is held.
func (d *Directory) removeLocked(subs []*Subscription) {
	for _, s := range subs {
		delete(d.subs, [2]uint32{s.Group().ID(), s.Topic().ID()})
	}
}

// addSubscription adds a subscription here and to its topic. If the group has one already, it
// returns that one instead. The error means that the topic or the group was deleted.
func (d *Directory) addSubscription(s *Subscription) (*Subscription, error) {
	defer d.activity.Note()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sorted.Store(nil)
	g, t := s.Group(), s.Topic()
	key := [2]uint32{g.ID(), t.ID()}
	switch before := d.subs[key]; {
	case before != nil:
		return before, nil
	case d.topics[t.Name()] != t:
		return nil, refusal.TopicNotFound(t.Name())
	case d.groups[g.Name()] != g:
		return nil, refusal.GroupNotFound(g.Name())
	}
	d.subs[key] = s
	t.AddSubscription(s)
	return s, nil
}

// restoreSubscription adds a subscription to existing ones. Nothing else runs yet.
func (d *Directory) restoreSubscription(s *Subscription) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sorted.Store(nil)
	d.subs[[2]uint32{s.Group().ID(), s.Topic().ID()}] = s
	s.Topic().AddSubscription(s)
}
