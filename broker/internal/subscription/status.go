package subscription

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
)

// A Status is the state of a subscription, and its counts since the broker was opened.
type Status struct {
	consume.Summary
	consume.Stats

	Redelivered int64 // deliveries with attempt 2 and above
	Waiting     int64 // receives that wait for a message

	// Deliveries are the deliveries by the classes of AttemptBounds.
	Deliveries [len(AttemptBounds) + 1]int64

	DeadLettersHour int64 // in the last hour, of at most 65 minutes

	Held *consume.Holding // by the client with the delivery in flight that began first; nil for none
}

// Status returns the state.
func (s *Subscription) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extend()
	now := time.Now()
	out := Status{
		Summary: s.progress.Summary(), Stats: s.progress.Stats(),
		Redelivered: s.redelivered, Waiting: int64(len(s.waiters)), Deliveries: s.attempts,
		DeadLettersHour: s.deadLetters.count(now),
	}
	if held, ok := s.progress.LongestHeld(now); ok {
		out.Held = &held
	}
	return out
}

// attemptClass returns the index in Status.Deliveries.
func attemptClass(attempt int) int {
	i := 0
	for i < len(AttemptBounds) && attempt > AttemptBounds[i] {
		i++
	}
	return i
}
