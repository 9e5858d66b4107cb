package consume

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/redelivery"
)

// A Policy is the settings about redelivery that apply at the moment of a decision.
type Policy struct {
	// MaxAttempts is the most deliveries of a message. Zero and below mean no maximum.
	MaxAttempts int

	// MaxRedeliveries is the most redeliveries after negative acknowledgements, which MaxAttempts
	// does not limit. Zero means no maximum.
	MaxRedeliveries int

	// OnExhausted is what happens after the last attempt of a message that has a message group. A
	// message without one becomes a dead letter.
	OnExhausted Exhaustion

	// Interval returns the retry interval after the delivery attempt of a push consumer failed.
	Interval func(attempt int, d redelivery.Draw) time.Duration

	// Override means that Interval applies instead of the delay that a push consumer requests.
	Override bool
}

// exhaustion applies the maximum of attempts: it returns what happens to a message after e if this
// was its last attempt, and AttemptsLeft if it was not. This is the only place that does so.
func (s *Policy) exhaustion(e Event, l *Lease) Exhaustion {
	switch {
	case !s.exhausted(e, l):
		return AttemptsLeft
	case l.Group == "":
		return ThenDeadLetter // no order to keep
	}
	return s.OnExhausted
}

// exhausted reports whether the attempt was the last one. Negative acknowledgements have a maximum
// of their own.
func (s *Policy) exhausted(e Event, l *Lease) bool {
	switch {
	case e == EventNegativeAck:
		return s.MaxRedeliveries > 0 && l.Attempt > s.MaxRedeliveries
	case e == EventDue && l.Negative:
		return false
	}
	return s.LastAttempt(l.Attempt)
}

// LastAttempt reports whether MaxAttempts allows no delivery after this one.
func (s *Policy) LastAttempt(attempt int) bool { return s.MaxAttempts > 0 && attempt >= s.MaxAttempts }

// interval returns the retry interval of a message that failed. Its chance follows from the record,
// so it is the same after a restart.
func (p *Progress) interval(l *Lease, s *Policy) time.Duration {
	return s.Interval(l.Attempt, p.draw(l))
}

func (p *Progress) draw(l *Lease) redelivery.Draw {
	at := p.Place(l)
	return redelivery.DrawFrom(uint64(p.config.Group), uint64(at.Topic), uint64(at.Queue), uint64(at.Offset), uint64(l.Serial), uint64(l.Attempt))
}
