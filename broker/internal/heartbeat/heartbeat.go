// Package heartbeat remembers when each consumer with leases of its own was last alive.
package heartbeat

import (
	"sync"
	"time"
)

// memory is how long a client without heartbeats is remembered.
const memory = 10 * time.Minute

// Owners has the time of the last heartbeat of each client that received messages as their owner.
// It does not remember other clients, so its size is bounded by the clients that receive. Several
// goroutines can call its methods at the same time. Each method takes one lock, for one read or
// change. The zero value is ready for use.
type Owners struct {
	mu       sync.Mutex
	seen     map[string]time.Time // guarded by mu
	expireAt time.Time            // guarded by mu: when Own next removes old clients
}

// Own remembers a client that receives messages as their owner. The receive counts as a heartbeat.
func (o *Owners) Own(owner string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]time.Time{}
	}
	o.seen[owner] = now
	if now.Before(o.expireAt) {
		return
	}
	o.expireAt = now.Add(memory)
	for k, t := range o.seen {
		if now.Sub(t) > memory {
			delete(o.seen, k)
		}
	}
}

// Touch records a heartbeat. It does nothing for a client that is not remembered.
func (o *Owners) Touch(owner string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.seen[owner]; ok {
		o.seen[owner] = now
	}
}

// Forget removes a client.
func (o *Owners) Forget(owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.seen, owner)
}

// Last returns the time of the last heartbeat of a client. ok is false if the client is not
// remembered.
func (o *Owners) Last(owner string) (at time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok = o.seen[owner]
	return at, ok
}
