// Package recent remembers where the messages of the last while are, by a hash
// of their ID ([IDs]: 8 bytes for each that lies in a queue), and decides what of that is
// written to the index in the store ([Run], [Index]) and how it comes back after a
// start ([Restore]). It knows no topic and no clock, and reads and writes nothing itself.
package recent

import "time"

// Capacity is how many IDs are remembered at least, where as many are added
// within the window; at most twice as many are, and these take about 8 MB.
const Capacity = 1 << 18

// IDs knows where the messages of the last while are. What it says has to be
// verified: another ID can have the same hash. It has two generations: the older
// one is forgotten when the newer one is full or as old as the window. The zero
// value is empty and ready. Goroutines may not share it.
type IDs struct {
	newer, older *generation // nil: empty
	since        time.Time   // of newer
}

// A Location is a message's place within its topic: in a queue, or, if Due is
// not zero, among the delayed messages, or, if Half is set, among the half
// messages, Offset then being its number there.
type Location struct {
	Queue  uint16
	Half   bool
	Offset int64
	Due    int64 // in nanoseconds since 1970: no pointer, so the collector passes over all locations
}

// Moves reports whether a message can leave the place.
func (l Location) Moves() bool { return l.Half || l.Due != 0 }

// Find returns where a message whose ID has that hash probably is. next returns the
// offset that follows the last one of a queue, 0 if there is no such queue.
func (r *IDs) Find(hash uint64, next func(queue uint16) int64) (Location, bool) {
	for _, g := range [...]*generation{r.newer, r.older} {
		if g != nil && len(g.aside) > 0 {
			if l, ok := g.aside[hash]; ok {
				return l, true
			}
		}
	}
	s := r.newer.find(hash)
	if s == 0 {
		s = r.older.find(hash)
	}
	if s == 0 {
		return Location{}, false
	}
	q := s.queue()
	end := next(q)
	if end == 0 {
		return Location{}, false
	}
	return Location{Queue: q, Offset: s.lastBefore(end)}, true
}

// Add remembers the hash of an ID, instead of what it was before. Its first bits
// have to be spread evenly; a Queue of l is below MaxQueues.
func (r *IDs) Add(hash uint64, l Location, window time.Duration, now time.Time) {
	if now.Sub(r.since) >= window || r.newer.len() >= Capacity {
		r.turn(now)
	}
	r.Put(hash, l)
}

// Put is Add for what is remembered anew after a start: nothing is forgotten
// for it, be it many or old.
func (r *IDs) Put(hash uint64, l Location) {
	if r.newer == nil {
		r.newer = &generation{}
	}
	r.Forget(hash)
	if l.Moves() || r.newer.find(hash) != 0 || r.older.find(hash) != 0 {
		r.newer.setAside(hash, l)
		return
	}
	r.newer.put(hash, l)
}

// turn forgets the older generation and begins a new one.
func (r *IDs) turn(now time.Time) { r.newer, r.older, r.since = nil, r.newer, now }

// Forget forgets an ID whose place was one that a message can leave.
func (r *IDs) Forget(hash uint64) {
	for _, g := range [...]*generation{r.newer, r.older} {
		if g != nil {
			delete(g.aside, hash)
		}
	}
}

// Len returns how many IDs are remembered.
func (r *IDs) Len() int { return r.newer.len() + r.older.len() }

// Forgotten reports whether nothing is remembered.
func (r *IDs) Forgotten() bool { return r.newer == nil && r.older == nil }

// Expire forgets what is older than the window, though nothing is added, and returns when to do so
// again; zero if nothing is remembered. A window of 0 has everything forgotten.
func (r *IDs) Expire(window time.Duration, now time.Time) (next time.Time) {
	if window == 0 {
		*r = IDs{}
	} else if now.Sub(r.since) >= window {
		r.turn(now)
	}
	if r.Forgotten() {
		return next
	}
	return r.since.Add(window)
}
