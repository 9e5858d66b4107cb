package subscription

import (
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// A stamp is the time at which the first message from an offset on was stored.
type stamp struct{ from, stored int64 }

// Oldest returns when the oldest message was stored that the group has not consumed, and the oldest
// one that was never delivered, in nanoseconds since 1970. Zero means that there is none. It reads
// one message from each queue whose first undelivered message it does not know. It skips a corrupt
// message; the receive that reaches the message logs it.
func (s *Subscription) Oldest() (all, fresh int64) {
	type gap struct {
		r         *queueReader
		from, end int64
	}
	var unknown []gap
	s.mu.Lock()
	for i, r := range s.readers {
		all = throttle.Lesser(all, s.progress.Oldest(i))
		next, end := s.progress.Cursor(i).Next, r.queue.End()
		switch {
		case next >= end:
		case r.head.from == next && r.head.stored != 0:
			fresh = throttle.Lesser(fresh, r.head.stored)
		default:
			unknown = append(unknown, gap{r, next, end})
		}
	}
	s.mu.Unlock()
	for i, g := range unknown {
		stored := s.Topic().FirstStored(s.env.Store, g.r.queue, g.from, g.end)
		fresh = throttle.Lesser(fresh, stored)
		unknown[i].end = stored
	}
	if len(unknown) > 0 {
		s.mu.Lock()
		for _, g := range unknown {
			g.r.head = stamp{from: g.from, stored: g.end}
		}
		s.mu.Unlock()
	}
	return throttle.Lesser(all, fresh), fresh
}
