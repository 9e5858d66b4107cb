package topic

import (
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// Oldest reads when the oldest message of the topic was stored, in nanoseconds since 1970. Zero
// means that there is none.
func (t *Topic) Oldest(s *store.Store) (oldest int64) {
	for _, q := range t.Queues() {
		if end := q.End(); end > 0 {
			oldest = throttle.Lesser(oldest, t.FirstStored(s, q, 0, end))
		}
	}
	return oldest
}

// FirstStored reads when the first message of a queue between two offsets was stored, in
// nanoseconds since 1970. Zero means that there is none, or that it cannot be read.
func (t *Topic) FirstStored(s *store.Store, q *Queue, from, to int64) int64 {
	m, ok, err := s.FirstIn(store.Range{Topic: t.ID(), Queue: q.Number(), From: from, To: to})
	if !ok || err != nil {
		return 0
	}
	return m.At.UnixNano()
}
