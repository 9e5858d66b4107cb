package subscription

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// ParkedGroups returns the parked message groups, in no order.
func (s *Subscription) ParkedGroups() []consume.ParkedGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress.ParkedGroups()
}

// A ParkedRedrive is the result of [Subscription.RedriveParked].
type ParkedRedrive struct {
	MessageGroups, Messages int64
	Leaving                 []*Leaving          // failed messages that become dead letters
	Behind                  []int64             // number of messages behind each of Leaving
	Write                   *store.PendingWrite // of the change; never nil
}

// RedriveParked sends parked message groups on: their failed messages are ready again or, with
// deadLetter, leave as dead letters. messageGroup names the only one; empty means all.
func (s *Subscription) RedriveParked(messageGroup string, deadLetter bool) (r ParkedRedrive) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil {
		now := time.Now()
		r.MessageGroups, r.Messages, r.Behind = s.progress.Redrive(messageGroup, deadLetter, now)
		effects := s.apply(now)
		r.Write, r.Leaving = effects.write, effects.leaving
	}
	if r.Write == nil {
		r.Write = s.env.Store.Groups.Add(func(*store.Batch) {}, nil)
	}
	return r
}
