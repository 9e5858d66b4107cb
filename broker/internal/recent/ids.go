// Package recent remembers the locations of the recent messages of a topic, to detect duplicates:
//
//   - [IDs] maps the hashes of message IDs to locations. It takes 8 bytes for each message that is
//     in a queue.
//   - [Run] and [Index] decide which hashes are written to the index in the store, and which
//     records of the index are deleted.
//   - [Restore] rebuilds the IDs after a start.
//
// The package has no clock and no I/O: the caller passes the time, and reads and writes the store.
package recent

import "time"

// Capacity is the least number of IDs that are remembered if more IDs are added within the window.
// At most twice as many are remembered. They take about 8 MB.
const Capacity = 1 << 18

// IDs remembers the locations of recent messages by the hashes of their IDs. Callers must verify a
// location that Find returns, because another ID can have the same hash. IDs has two generations.
// When the newer generation is full or as old as the window, IDs forgets the older one. The zero
// value is empty and ready for use. Goroutines must not share an IDs.
type IDs struct {
	newer, older *generation // nil: empty
	since        time.Time   // when newer began
}

// A Location is the place of a message in its topic. It is one of:
//   - a message in a queue: Queue and Offset
//   - a delayed message: Due is its delivery time, and Offset its number
//   - a half message: Half is set, and Offset is its number
type Location struct {
	Queue  uint16
	Half   bool
	Offset int64
	Due    int64 // in nanoseconds since 1970; not a time.Time, which has a pointer to scan
}

// Moves reports whether the message can leave the location: it is a delayed message or a half
// message.
func (l Location) Moves() bool { return l.Half || l.Due != 0 }

// Find returns the probable location of the message whose ID has a hash; false if the hash is not
// remembered. next returns the offset after the last message of a queue, or 0 if the queue does not
// exist.
func (r *IDs) Find(hash uint64, next func(queue uint16) int64) (Location, bool) {
	for _, g := range [...]*generation{r.newer, r.older} {
		if g != nil && len(g.overflow) > 0 {
			if l, ok := g.overflow[hash]; ok {
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

// Add remembers the location of the ID with a hash, in place of an earlier location. The first bits
// of hashes must be uniformly distributed. The Queue of l must be below MaxQueues.
func (r *IDs) Add(hash uint64, l Location, window time.Duration, now time.Time) {
	if now.Sub(r.since) >= window || r.newer.len() >= Capacity {
		r.rotate(now)
	}
	r.Put(hash, l)
}

// Put does the same as Add for IDs that are restored after a start. It never forgets the older
// generation, regardless of the number and age of the IDs.
func (r *IDs) Put(hash uint64, l Location) {
	if r.newer == nil {
		r.newer = &generation{}
	}
	r.Forget(hash)
	if l.Moves() || r.newer.find(hash) != 0 || r.older.find(hash) != 0 {
		r.newer.addOverflow(hash, l)
		return
	}
	r.newer.put(hash, l)
}

// rotate forgets the older generation and begins a new one.
func (r *IDs) rotate(now time.Time) { r.newer, r.older, r.since = nil, r.newer, now }

// Forget forgets the location of a delayed or half message, by the hash of its ID. Locations in a
// queue may stay.
func (r *IDs) Forget(hash uint64) {
	for _, g := range [...]*generation{r.newer, r.older} {
		if g != nil {
			delete(g.overflow, hash)
		}
	}
}

// Len returns how many IDs are remembered.
func (r *IDs) Len() int { return r.newer.len() + r.older.len() }

// Forgotten reports whether no IDs are remembered.
func (r *IDs) Forgotten() bool { return r.newer == nil && r.older == nil }

// Expire forgets the IDs that are older than the window. It returns when to call it again; zero if
// no IDs are remembered. A window of 0 forgets all IDs.
func (r *IDs) Expire(window time.Duration, now time.Time) (next time.Time) {
	if window == 0 {
		*r = IDs{}
	} else if now.Sub(r.since) >= window {
		r.rotate(now)
	}
	if r.Forgotten() {
		return next
	}
	return r.since.Add(window)
}
