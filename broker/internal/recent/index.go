package recent

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Run collects, for the next record of the index, the hashes of the IDs of
// messages that follow one another in a queue. Its zero value has none.
type Run struct {
	end       int64 // the offset after the last of them
	first, at int64 // when the first and the last of them were stored, in nanoseconds since 1970
	hashes    []uint64
}

// Len returns how many there are.
func (r *Run) Len() int { return len(r.hashes) }

// Over reports whether the run is to be written before a message of that offset,
// stored at that time, is added: an ID that is stored again, because the window is
// over, has to be in a record of later.
func (r *Run) Over(offset, at int64, window time.Duration) bool {
	return r.end == offset && len(r.hashes) > 0 && at-r.first >= int64(window)
}

// Add adds the message, and reports whether the run has as many as a record. What it has of
// messages that are not those just before is dropped: opening reads what is between two records
// from the messages.
func (r *Run) Add(offset int64, hash uint64, at int64) (full bool) {
	if r.end != offset {
		r.hashes = r.hashes[:0]
	}
	if len(r.hashes) == 0 {
		r.first = at
	}
	r.hashes = append(r.hashes, hash)
	r.end, r.at = offset+1, at
	return len(r.hashes) == store.MaxRecentIDs
}

// Fresh reports whether the run has messages, the last of them within the window.
func (r *Run) Fresh(window time.Duration, now time.Time) bool {
	return len(r.hashes) > 0 && now.UnixNano()-r.at < int64(window)
}

// Take returns the run as a record, and goes on without any. The record's hashes are good
// until the next Add.
func (r *Run) Take(queue uint16) store.RecentIDs {
	ids := store.RecentIDs{Queue: queue, End: r.end, At: time.Unix(0, r.at), Hashes: r.hashes}
	r.hashes = r.hashes[:0]
	return ids
}

// An Index is what is known of a topic's index of IDs in the store. Its zero
// value is that of a topic without one. Times are in nanoseconds since 1970.
type Index struct {
	Last int64 // when a message was last noted for it, or the broker was opened; 0 if none was
	From int64 // no record is of before; 0 if there is none
}

// Wrote notes a record that was written.
func (x *Index) Wrote(ids store.RecentIDs) {
	if at := ids.At.UnixNano(); x.From == 0 || at < x.From {
		x.From = at
	}
}

// An Outdated is what of an index is older than the window. The zero value is nothing.
type Outdated struct {
	All      bool
	From, To time.Time // otherwise: the records to delete; zero if none
	Next     time.Time // when to look again; zero if the index has nothing then
}

// Expire decides what is older than the window, which is everything if that is 0. Of what
// is only a part it has the index know that it is gone.
func (x *Index) Expire(window time.Duration, now time.Time) Outdated {
	old := now.Add(-window)
	switch {
	case x.Last == 0:
		return Outdated{}
	case window == 0 || x.Last <= old.UnixNano():
		return Outdated{All: true}
	}
	out := Outdated{Next: time.Unix(0, x.Last).Add(window)}
	// Not less than half a window at once: each of many topics has all of them looked at once a
	// window.
	if x.From != 0 && x.From < old.Add(-window/2).UnixNano() {
		out.From, out.To = time.Unix(0, x.From), old
		x.From = old.UnixNano()
	}
	return out
}
