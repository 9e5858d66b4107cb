package subscription

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/history"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
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

// Recordable returns the counters and gauges that the history of rates and backlogs has.
func (s *Subscription) Recordable() (c history.Counts, g history.Gauges) {
	g[history.Backlog] = s.Backlog().Messages
	s.mu.Lock()
	defer s.mu.Unlock()
	g[history.Retrying] = s.progress.WaitingRetry()
	stats := s.progress.Stats()
	c[history.Acked], c[history.Dead], c[history.Redelivered] = stats.Acked, stats.DeadLetters, s.redelivered
	for _, n := range s.attempts {
		c[history.Delivered] += n
	}
	return c, g
}

// MaxLook is the number of new messages that the looks of one survey read, for all subscriptions
// together.
const MaxLook = 1 << 16

// The bounds of one read of LookAhead.
const (
	lookMessages = 1024
	lookBytes    = 64 << 20 // of bodies, which are not read
)

// LookAhead reads the message groups of new messages that no receive has reached, at most budget
// messages, and reduces budget by their number. It reads only if message groups are parked or
// blocked: Status then does not count their new messages as ready. Corrupt messages count as ready.
func (s *Subscription) LookAhead(budget *int64) {
	for *budget > 0 {
		look, queue, ok := s.nextLook(min(*budget, lookMessages))
		if !ok || !s.readHeaders(look, queue) {
			return
		}
		*budget -= look.To - look.From
	}
}

// readHeaders reads the message groups of a look. It returns false if it cannot read them.
func (s *Subscription) readHeaders(look consume.Look, queue *topic.Queue) bool {
	if !s.env.Calls.Begin() {
		return false
	}
	defer s.env.Calls.End()
	hs, _, err := s.env.Store.Headers(store.Range{Topic: s.Topic().ID(), Queue: queue.Number(), From: look.From, To: look.To}, false, lookMessages, lookBytes)
	if err != nil {
		return false // the receive that reaches the messages reports it
	}
	groups, offsets := make([]string, len(hs)), make([]int64, len(hs))
	read := int64(0)
	for i := range hs {
		groups[i], offsets[i] = hs[i].MessageGroup, hs[i].Offset
		read += hs[i].Size
	}
	if read >= lookBytes {
		look.To = offsets[len(offsets)-1] + 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Looked(look, groups, offsets)
	return true
}

func (s *Subscription) nextLook(limit int64) (look consume.Look, queue *topic.Queue, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return look, nil, false
	}
	s.extend()
	if look, ok = s.progress.NextLook(limit); ok {
		queue = s.readers[look.Queue].queue
	}
	return look, queue, ok
}

// attemptClass returns the index in Status.Deliveries.
func attemptClass(attempt int) int {
	i := 0
	for i < len(AttemptBounds) && attempt > AttemptBounds[i] {
		i++
	}
	return i
}
