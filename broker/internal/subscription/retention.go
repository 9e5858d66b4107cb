package subscription

import (
	"maps"
	"slices"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// SkipRemoved moves the group over the messages that a round of retention removes, and returns the
// messages that the group loses because it has not consumed them. It notes in the plan the messages
// that are kept for the group.
func (s *Subscription) SkipRemoved(r *retention.Plan) topic.Amount {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return topic.Amount{}
	}
	removals := make([]consume.Removal, len(r.Queues))
	for i := range r.Queues {
		q := &r.Queues[i]
		removals[i] = consume.Removal{Queue: int(q.Number), To: q.To}
		if !q.Moves() { // only leftovers can be removed
			removals[i].Again, removals[i].Offsets = true, slices.Collect(maps.Keys(q.Leftovers))
		}
	}
	lost := s.progress.SkipRemoved(removals, r.Purge, func(l *consume.Lease) bool {
		q := &r.Queues[l.Queue()]
		if !r.Purge && (!r.Expired(q, l.Offset()) || l.Needed(r.Grace(), r.Now)) {
			q.Retain(l.Offset(), l.Due.Add(r.Grace()))
			return false
		}
		return true
	})
	s.apply(r.Now)
	return topic.Amount(lost)
}
