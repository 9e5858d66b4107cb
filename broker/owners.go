package broker

import (
	"sync"
	"time"
)

// ownerMemory is how long a client that gave no sign is remembered.
const ownerMemory = 10 * time.Minute

// owners knows when each client that received something as its owner gave its last
// sign of life. Nobody else is remembered, whoever gives signs: so there are no
// more of them than clients that receive. The zero value is ready.
type owners struct {
	mu    sync.Mutex
	seen  map[string]time.Time // guarded by mu
	sweep time.Time            // guarded by mu: when to forget old ones again
}

// own takes a sign of life of a client that receives as an owner.
func (o *owners) own(owner string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]time.Time{}
	}
	o.seen[owner] = now
	if now.Before(o.sweep) {
		return
	}
	o.sweep = now.Add(ownerMemory)
	for k, t := range o.seen {
		if now.Sub(t) > ownerMemory {
			delete(o.seen, k)
		}
	}
}

// touch takes a sign of life of an owner.
func (o *owners) touch(owner string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.seen[owner]; ok {
		o.seen[owner] = now
	}
}

func (o *owners) forget(owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.seen, owner)
}

func (o *owners) lastSeen(owner string) (time.Time, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t, ok := o.seen[owner]
	return t, ok
}

// Touch tells that a client is alive: what it received with Poll.Owner stays
// invisible for others. A client that received nothing so is not remembered.
func (b *Broker) Touch(owner string) { b.owners.touch(owner, time.Now()) }

// Forget tells that a client has ended: what it received with Poll.Owner and
// did not answer times out in a second.
func (b *Broker) Forget(owner string) {
	if !b.begin() {
		return
	}
	defer b.end()
	b.owners.forget(owner)
	b.mu.RLock()
	subs := b.subs.all()
	b.mu.RUnlock()
	for _, s := range subs {
		s.Disown(owner, time.Now().Add(time.Second))
	}
}
