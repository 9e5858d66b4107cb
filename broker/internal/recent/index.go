package recent

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Run collects the hashes of the IDs of consecutive messages of a queue, for the next record of
// the index. The zero value is empty.
type Run struct {
	end       int64 // the offset after the last message
	first, at int64 // when the first and the last message were stored, in nanoseconds since 1970
	hashes    []uint64
}

// Len returns the number of hashes.
func (r *Run) Len() int { return len(r.hashes) }

// Over reports whether the run must be written before the message at offset is added. at is the
// time when that message was stored. The run must be written if its first message is older than the
// window: the run may have the ID of the new message already, and then a later record must have it.
func (r *Run) Over(offset, at int64, window time.Duration) bool {
	return r.end == offset && len(r.hashes) > 0 && at-r.first >= int64(window)
}

// Add adds the message at offset. It reports whether the run has as many hashes as a record. If the
// message does not directly follow the run, Add first drops the run. After a restart, the IDs
// between two records are read from the messages.
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

// Fresh reports whether the run has messages, and the last one is within the window.
func (r *Run) Fresh(window time.Duration, now time.Time) bool {
	return len(r.hashes) > 0 && now.UnixNano()-r.at < int64(window)
}

// Take returns the run as a record, and empties the run. The hashes of the record are valid until
// the next Add.
func (r *Run) Take(queue uint16) store.RecentIDs {
	ids := store.RecentIDs{Queue: queue, End: r.end, At: time.Unix(0, r.at), Hashes: r.hashes}
	r.hashes = r.hashes[:0]
	return ids
}

// An Index describes the index of IDs that a topic has in the store. The zero value describes a
// topic without an index. Times are in nanoseconds since 1970.
type Index struct {
	Last int64 // when a message was last added, or the broker was started; 0 if no message was added
	From int64 // lower bound of the times of the records; 0 if there are no records
}

// Wrote records that a record was written.
func (x *Index) Wrote(ids store.RecentIDs) {
	if at := ids.At.UnixNano(); x.From == 0 || at < x.From {
		x.From = at
	}
}

// An Outdated is the part of an index that is older than the window. The zero value is empty.
type Outdated struct {
	All      bool
	From, To time.Time // if All is false, the times of the records to delete; zero if there are none
	Next     time.Time // when to call Expire again; zero if the index is empty then
}

// Expire returns the part of the index that is older than the window. With a window of 0 this is
// the whole index. If it is not the whole index, Expire advances From as if the records were
// deleted.
func (x *Index) Expire(window time.Duration, now time.Time) Outdated {
	old := now.Add(-window)
	switch {
	case x.Last == 0:
		return Outdated{}
	case window == 0 || x.Last <= old.UnixNano():
		return Outdated{All: true}
	}
	out := Outdated{Next: time.Unix(0, x.Last).Add(window)}
	// Delete at least half a window of records at once, because many topics may expire once per
	// window.
	if x.From != 0 && x.From < old.Add(-window/2).UnixNano() {
		out.From, out.To = time.Unix(0, x.From), old
		x.From = old.UnixNano()
	}
	return out
}
