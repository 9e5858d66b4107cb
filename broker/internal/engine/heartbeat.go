package engine

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// memory is how long a client without heartbeats is remembered.
	memory = 10 * time.Minute

	// mostPlaces bounds the places that are remembered of a client.
	mostPlaces = 256
)

// A OwnerPlace is a subscription: the numbers of a group and a topic.
type OwnerPlace struct{ Group, Topic uint32 }

// A client is an owner of messages.
type client struct {
	at    time.Time           // of its last heartbeat
	first OwnerPlace          // where it received first; most clients have no other place
	more  map[OwnerPlace]bool // the other places
	many  bool                // there are more than mostPlaces; more is nil then
}

// Owners has the time of the last heartbeat of each client that received messages as their owner.
// It does not remember other clients, so its size is bounded by the clients that receive. Several
// goroutines can call its methods at the same time. Each method takes one lock, for one read or
// change. The zero value is ready for use.
type Owners struct {
	mu       sync.Mutex
	seen     map[string]*client // guarded by mu
	expireAt time.Time          // guarded by mu: when Own next removes old clients
}

// Own remembers a client that receives messages at a place as their owner. The receive counts as a
// heartbeat.
func (o *Owners) Own(owner string, p OwnerPlace, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]*client{}
	}
	switch c := o.seen[owner]; {
	case c == nil:
		o.seen[owner] = &client{at: now, first: p}
	case c.many || c.first == p || c.more[p]:
		c.at = now
	case len(c.more) == mostPlaces-1:
		c.at, c.more, c.many = now, nil, true
	default:
		if c.more == nil {
			c.more = map[OwnerPlace]bool{}
		}
		c.at, c.more[p] = now, true
	}
	if now.Before(o.expireAt) {
		return
	}
	o.expireAt = now.Add(memory)
	for k, c := range o.seen {
		if now.Sub(c.at) > memory {
			delete(o.seen, k)
		}
	}
}

// Touch records a heartbeat. It does nothing for a client that is not remembered.
func (o *Owners) Touch(owner string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.seen[owner]; c != nil {
		c.at = now
	}
}

// Forget removes a client, and returns the places at which it received; many means that there are
// too many to remember. A client that is not remembered has no places: it received nothing, or its
// leases have ended.
func (o *Owners) Forget(owner string) (places []OwnerPlace, many bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.seen[owner]
	if c == nil {
		return nil, false
	}
	delete(o.seen, owner)
	return append(slices.Collect(maps.Keys(c.more)), c.first), c.many
}

// Last returns the time of the last heartbeat of a client. ok is false if the client is not
// remembered.
func (o *Owners) Last(owner string) (at time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.seen[owner]; c != nil {
		return c.at, true
	}
	return time.Time{}, false
}
