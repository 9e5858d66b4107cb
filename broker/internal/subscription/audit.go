package subscription

import (
	"errors"
	"fmt"

	"github.com/tidegate/tidegate/broker/internal/consume"
)

// An Audited is the memory that a subscription uses besides its progress.
type Audited struct {
	Ahead     int64 // bytes that were read ahead
	Receiving int   // receives under way with an attempt ID
}

// Audit returns the memory in use, and an error if the progress, the timer or the effects
// contradict each other. It is for tests, between operations.
func (s *Subscription) Audit() (a Audited, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.readers {
		a.Ahead += r.ahead.bytes
	}
	a.Receiving = len(s.receiving)
	err = s.progress.Audit()
	if due, ok := s.progress.NextDue(); ok && (s.armed.IsZero() || s.armed.After(due)) {
		err = errors.Join(err, fmt.Errorf("the timer is set to %v, the first lease is due at %v", s.armed, due))
	}
	if e := s.progress.Effects(); len(e.Writes) > 0 || e.Done != (consume.Amount{}) || e.LeasedBytes != 0 {
		err = errors.Join(err, fmt.Errorf("effects were not applied: %+v", e))
	}
	return a, err
}
