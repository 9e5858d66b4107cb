package subscription

import (
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A stamp is the time at which the first message from an offset on was stored.
type stamp struct{ from, stored int64 }

// Oldest returns when the oldest message was stored that the group has not consumed, and the oldest
// one that was never delivered, in nanoseconds since 1970. Zero means that there is none. The
// second one is of no parked or blocked message group, as far as LookAhead has looked. It reads one
// message from each queue whose first undelivered message it does not know, or two if the first one
// is of such a message group. It skips a corrupt message; the receive that reaches the message logs
// it.
func (s *Subscription) Oldest() (all, fresh int64) {
	type gap struct {
		queue     *topic.Queue
		from, end int64
		of        *stamp
		free      bool
	}
	var unknown []gap
	s.mu.Lock()
	for i, r := range s.readers {
		all = throttle.Lesser(all, s.progress.Oldest(i))
		next, free, end := s.progress.Cursor(i).Next, s.progress.FirstFree(i), r.queue.End()
		for _, g := range []gap{{r.queue, next, end, &r.head, next == free}, {r.queue, free, end, &r.free, true}} {
			switch {
			case g.from >= end || g.of == &r.free && next == free:
			case g.of.from != g.from || g.of.stored == 0:
				unknown = append(unknown, g)
			default:
				all = throttle.Lesser(all, g.of.stored)
				if g.free {
					fresh = throttle.Lesser(fresh, g.of.stored)
				}
			}
		}
	}
	s.mu.Unlock()
	found := make([]int64, len(unknown))
	for i, g := range unknown {
		found[i] = s.Topic().FirstStored(s.env.Store, g.queue, g.from, g.end)
		all = throttle.Lesser(all, found[i])
		if g.free {
			fresh = throttle.Lesser(fresh, found[i])
		}
	}
	if len(unknown) > 0 {
		s.mu.Lock()
		for i, g := range unknown {
			*g.of = stamp{from: g.from, stored: found[i]}
		}
		s.mu.Unlock()
	}
	return all, fresh
}
