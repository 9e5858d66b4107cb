package recent

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Stored is a message that the index does not have.
type Stored struct {
	Queue  uint16
	Offset int64
	Hash   uint64 // of its ID
	At     time.Time
}

// Restore returns what is remembered after a start: what the records of the index have, and the
// messages that were read beside them. It sorts both: the last that was stored is remembered last,
// for of an ID that was stored twice, since the window was over, it is the second that counts.
func Restore(begun time.Time, records []store.RecentIDs, read []Stored) IDs {
	slices.SortFunc(records, func(x, y store.RecentIDs) int { return x.At.Compare(y.At) })
	slices.SortFunc(read, func(x, y Stored) int { return x.At.Compare(y.At) })
	n := len(read)
	for _, ids := range records {
		n += len(ids.Hashes)
	}
	r := IDs{since: begun}
	if n > 0 {
		r.newer = generationOf(n)
	}
	readBefore := func(at time.Time) {
		for len(read) > 0 && read[0].At.Before(at) {
			r.Put(read[0].Hash, Location{Queue: read[0].Queue, Offset: read[0].Offset})
			read = read[1:]
		}
	}
	for _, ids := range records {
		readBefore(ids.At)
		for i, h := range ids.Hashes {
			r.Put(h, Location{Queue: ids.Queue, Offset: ids.First() + int64(i)})
		}
	}
	for _, m := range read {
		r.Put(m.Hash, Location{Queue: m.Queue, Offset: m.Offset})
	}
	return r
}
