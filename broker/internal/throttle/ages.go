package throttle

import (
	"iter"
	"slices"
	"time"
)

// AgeTick is the resolution of the stored times in [Ages], in nanoseconds. Ages has at most one
// entry per tick.
const AgeTick = int64(100 * time.Millisecond)

// Ages counts messages by the time when they were stored, in nanoseconds since 1970. The entries
// are sorted, the oldest first. Within a queue, stored times grow with the offsets, so Add nearly
// always adds at the end. Add and Remove take amortized constant time, or a binary search among
// the entries. The zero value is empty.
type Ages struct {
	entries []ageEntry // the first one is never empty
	empty   int        // number of entries without messages
}

// An ageEntry counts the messages of one tick.
type ageEntry struct {
	stored int64 // stored time of the first message that was added
	n      int
}

func (a *Ages) search(stored int64) (int, bool) {
	return slices.BinarySearchFunc(a.entries, stored/AgeTick, func(e ageEntry, tick int64) int {
		return int(min(max(e.stored/AgeTick-tick, -1), 1))
	})
}

// Add counts a message that was stored at stored.
func (a *Ages) Add(stored int64) {
	i := len(a.entries) - 1
	if i < 0 || a.entries[i].stored/AgeTick != stored/AgeTick {
		var ok bool
		if i, ok = a.search(stored); !ok {
			a.entries = slices.Insert(a.entries, i, ageEntry{stored: stored})
			a.empty++
		}
	}
	if a.entries[i].n == 0 {
		a.entries[i].stored = stored
		a.empty--
	}
	a.entries[i].n++
}

// Remove removes a message that was added. It does nothing if the tick of stored has no messages.
func (a *Ages) Remove(stored int64) {
	i, ok := a.search(stored)
	if !ok || a.entries[i].n == 0 {
		return
	}
	if a.entries[i].n--; a.entries[i].n > 0 {
		return
	}
	a.empty++
	first := 0
	for first < len(a.entries) && a.entries[first].n == 0 {
		first++
	}
	a.entries, a.empty = a.entries[first:], a.empty-first
	if 2*a.empty > len(a.entries) { // for example one old message, and many later ones that were removed
		a.entries = slices.DeleteFunc(a.entries, func(e ageEntry) bool { return e.n == 0 })
		a.empty = 0
	}
}

// Oldest returns when the oldest message was stored, exact to a tick; 0 if there are no messages.
func (a *Ages) Oldest() int64 {
	if len(a.entries) == 0 {
		return 0
	}
	return a.entries[0].stored
}

// All yields each tick that has messages, the oldest first: when the messages were stored, exact
// to a tick, and their number.
func (a *Ages) All() iter.Seq2[int64, int] {
	return func(yield func(int64, int) bool) {
		for _, e := range a.entries {
			if e.n > 0 && !yield(e.stored, e.n) {
				return
			}
		}
	}
}

// Lesser returns the lesser of two times or limits. 0 means none: then Lesser returns the other.
func Lesser[T ~int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
