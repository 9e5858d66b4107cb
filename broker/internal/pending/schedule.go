package pending

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Schedule sets the times of the checks of unresolved transactions.
type Schedule struct {
	Timeout  time.Duration // from the send of the half message to the first check
	Interval time.Duration // between two checks
	Max      int           // of checks; negative for no maximum
}

// First returns the state of a new half message. firstCheck replaces Timeout unless it is 0.
func (s Schedule) First(firstCheck time.Duration, now time.Time) store.HalfState {
	if firstCheck == 0 {
		firstCheck = s.Timeout
	}
	return store.HalfState{Due: now.Add(firstCheck), Span: firstCheck}
}

// Next returns the state of a half message after the check that is due now. giveUp is true if the
// message has had its last check. A check that is a little late does not delay the checks after it.
// Missed checks are not repeated.
func (s Schedule) Next(is store.HalfState, now time.Time) (after store.HalfState, giveUp bool) {
	if s.Max >= 0 && is.Checks >= s.Max {
		return is, true
	}
	after = is
	after.Due, after.Span, after.Checks = is.Due.Add(s.Interval), s.Interval, is.Checks+1
	if !after.Due.After(now) {
		after.Due = now.Add(s.Interval)
	}
	return after, false
}
