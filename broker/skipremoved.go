package broker

import (
	"maps"
	"slices"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// SkipRemoved moves a group over the messages that a round of retention removes, and returns those
// that it loses because it has not consumed them. It notes in the plan those that are kept for the
// group.
func (s *subscription) SkipRemoved(r *retention.Plan) topic.Amount {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return topic.Amount{}
	}
	removals := make([]consume.Removal, len(r.Queues))
	for i := range r.Queues {
		q := &r.Queues[i]
		removals[i] = consume.Removal{Queue: int(q.Number), To: q.To}
		if !q.Moves() { // nothing new; leftovers may be done
			removals[i].Again, removals[i].Offsets = true, slices.Collect(maps.Keys(q.Leftovers))
		}
	}
	lost := s.progress.SkipRemoved(removals, r.Purge, func(l *consume.Lease) bool {
		q := &r.Queues[l.Queue()]
		if !r.Purge && (!r.Expired(q, l.Offset()) || l.Needed(r.Grace(), r.Now)) {
			q.Keep(l.Offset(), l.Due.Add(r.Grace()))
			return false
		}
		return true
	})
	s.apply(r.Now)
	return topic.Amount(lost)
}
