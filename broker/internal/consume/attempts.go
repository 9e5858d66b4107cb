package consume

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/redelivery"
)

// A Policy holds the redelivery settings that apply at the moment of a decision.
type Policy struct {
	// MaxAttempts is the most deliveries of a message. Zero and below mean no maximum.
	MaxAttempts int

	// MaxRedeliveries is the most redeliveries after negative acknowledgements, which MaxAttempts
	// does not limit. Zero means no maximum.
	MaxRedeliveries int

	// OnExhausted is the action after the last attempt of a message that has a message group. A
	// message without a message group becomes a dead letter.
	OnExhausted Exhaustion

	// Schedule has the retry intervals of the group.
	Schedule Schedule

	// Address has the redelivery settings of the address, which replace Schedule and the delay that
	// a push consumer requests. Nil means none.
	Address *redelivery.Rules
}

// A Schedule has the retry intervals of a group. The settings of the group implement it.
type Schedule interface {
	// Interval returns the interval after the failed delivery attempt of a push consumer. The first
	// attempt is 1.
	Interval(attempt int) time.Duration
}

// exhaustion applies the maximum of attempts to a message after e. It returns AttemptsLeft if this
// was not the last attempt, and the action for the message if it was. No other function applies the
// maximum.
func (s *Policy) exhaustion(e Event, l *Lease) Exhaustion {
	switch {
	case !s.exhausted(e, l):
		return AttemptsLeft
	case l.Group == "":
		return ThenDeadLetter // no order to keep
	}
	return s.OnExhausted
}

// exhausted reports whether the attempt was the last one. Negative acknowledgements have their own
// maximum.
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

// interval returns the retry interval of a message that failed. The random part is derived from the
// record of the lease, so it is the same after a restart.
func (p *Progress) interval(l *Lease, s *Policy) time.Duration {
	if s.Address != nil {
		return s.Address.After(l.Attempt, p.draw(l))
	}
	return s.Schedule.Interval(l.Attempt)
}

func (p *Progress) draw(l *Lease) redelivery.Draw {
	at := p.Place(l)
	return redelivery.DrawFrom(uint64(p.config.Group), uint64(at.Topic), uint64(at.Queue), uint64(at.Offset), uint64(l.Serial), uint64(l.Attempt))
}
