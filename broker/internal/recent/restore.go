package recent

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Stored is a message whose ID is in no record of the index.
type Stored struct {
	Queue  uint16
	Offset int64
	Hash   uint64 // of its ID
	At     time.Time
}

// Restore returns the IDs of the records of the index, and of the messages that were read because
// no record has them. begun is the start of the newer generation. Restore sorts both slices by
// time, so that the latest location counts if an ID was stored twice.
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
