package throttle

import (
	"iter"
	"slices"
	"time"
)

// AgeTick is how finely [Ages] tells stored times apart, in nanoseconds: what
// counts the messages of a queue has at most one entry for each.
const AgeTick = int64(100 * time.Millisecond)

// Ages counts messages by when they were stored, the oldest first, in
// nanoseconds since 1970. Offsets and stored times of a queue grow together, so
// adding is nearly always at the end; all it does is O(1) amortized, or a search
// among the entries. Its zero value is empty.
type Ages struct {
	entries []ageEntry // the first one is never empty
	empty   int        // of entries
}

// An ageEntry is the messages of one tick.
type ageEntry struct {
	stored int64 // of the first of them that was added
	n      int
}

func (a *Ages) search(stored int64) (int, bool) {
	return slices.BinarySearchFunc(a.entries, stored/AgeTick, func(e ageEntry, tick int64) int {
		return int(min(max(e.stored/AgeTick-tick, -1), 1))
	})
}

// Add counts a message.
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

// Remove takes out a message that was added. One of a tick that has none is passed over.
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
	if 2*a.empty > len(a.entries) { // one old message, and much that came and went since
		a.entries = slices.DeleteFunc(a.entries, func(e ageEntry) bool { return e.n == 0 })
		a.empty = 0
	}
}

// Oldest returns when the oldest message was stored, exact to a tick; 0 for none.
func (a *Ages) Oldest() int64 {
	if len(a.entries) == 0 {
		return 0
	}
	return a.entries[0].stored
}

// All yields when messages were stored, exact to a tick, and how many each, the oldest first.
func (a *Ages) All() iter.Seq2[int64, int] {
	return func(yield func(int64, int) bool) {
		for _, e := range a.entries {
			if e.n > 0 && !yield(e.stored, e.n) {
				return
			}
		}
	}
}

// Lesser returns the lesser of two times or limits, of which 0 is none.
func Lesser[T ~int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
