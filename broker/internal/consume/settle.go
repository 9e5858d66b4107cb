package consume

import (
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/handle"
)

// Ack marks a delivery as consumed.
func (p *Progress) Ack(h handle.Receipt, now time.Time) error {
	l, err := p.Current(h, now)
	if err != nil {
		return err
	}
	p.complete(l)
	p.stats.Acked++
	p.effects.Durable = true
	return nil
}

// A Settlement is an event with which a consumer ends or changes a delivery.
type Settlement struct {
	// Event is one of EventFail, EventNegativeAck, EventSnooze, EventChange and EventDeadLetter.
	Event Event

	// After is the time from now until the message is delivered again, except for EventDeadLetter.
	// An EventChange with zero returns the message to the queue: for a simple consumer that is a
	// timeout, for a push consumer a release, and the attempt does not count.
	After time.Duration

	// BySchedule means that the interval of Policy applies instead of After. EventFail only.
	BySchedule bool

	Serial  uint32 // of the new receipt handle. EventChange only.
	Attempt int    // the delivery attempt as the consumer counts it. EventDeadLetter only.
	Reason  string // of the dead letter or of the parked message group. Empty: the attempts are exhausted.
}

// An Outcome is the result of a settlement.
type Outcome struct {
	To   State         // 0 if there was nothing left to do
	Wait time.Duration // until the message is delivered again

	// Repeated is the lease of a message that an earlier request has parked or is making a dead
	// letter. Settle then changed nothing. Nil means none.
	Repeated *Lease
}

// A TooLongError is returned for an invisible duration with which the delivery would end more than
// Config.MaxInvisible after its start.
type TooLongError struct {
	Left time.Duration // that is still allowed
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("at most %v more are allowed for this delivery", e.Left)
}

// maxClaimedAttempt bounds the number of attempts that a consumer can claim to have made.
const maxClaimedAttempt = 1 << 20

// Settle applies a settlement to the delivery of receipt handle h. If it returns an error, nothing
// has changed.
func (p *Progress) Settle(h handle.Receipt, s Settlement, policy *Policy, now time.Time) (Outcome, error) {
	if s.Event == EventDeadLetter {
		return p.giveUp(h, s, policy, now)
	}
	l, err := p.Current(h, now)
	if err != nil {
		return Outcome{}, err
	}
	e := s.Event
	if e == EventChange && s.After == 0 {
		if e = EventTimeout; l.Push {
			e = EventRelease
		}
	}
	exhaustion := policy.exhaustion(e, l)
	to, ok := l.State().Next(e, exhaustion, l.Push)
	if !ok {
		return Outcome{}, fmt.Errorf("the message is %s", l.State())
	}
	if s.Event == EventFail || s.Event == EventNegativeAck {
		defer p.fail(l, Failure{Event: e, Attempt: l.Attempt, Client: l.Receiver(), Reason: s.Reason, At: now})
	}
	if left := l.Since.Add(p.config.MaxInvisible).Sub(now); e == EventChange && s.After > left {
		return Outcome{}, &TooLongError{Left: max(left, 0)}
	}
	p.effects.Durable = true
	if exhaustion == ThenBlock && (e == EventFail || e == EventNegativeAck || e == EventTimeout) {
		p.block(l)
	}
	switch to {
	case Parked:
		p.park(l, reasonOf(s.Reason, l), now)
		return Outcome{To: to}, nil
	case DeadLetter:
		p.depart(l, Departure{Event: e, Early: e == EventNegativeAck, Reason: reasonOf(s.Reason, l)})
		return Outcome{To: to}, nil
	}
	p.reschedule(l, s, policy, now)
	p.set(l, to)
	if to == Ready {
		p.wake(l)
	}
	p.putLease(l)
	return Outcome{To: to, Wait: max(l.Due.Sub(now), 0)}, nil
}

// reschedule changes the lease as the settlement requires, except for its state.
func (p *Progress) reschedule(l *Lease, s Settlement, policy *Policy, now time.Time) {
	l.setDue(now, s.After)
	switch s.Event {
	case EventFail:
		if s.BySchedule || l.Push && policy.Address != nil {
			l.setDue(now, p.interval(l, policy))
		}
	case EventNegativeAck:
		l.Negative = true
	case EventSnooze:
		l.Owner = ""
		l.Attempt--
		l.Negative = true // a maximum that is lowered later does not make it a dead letter
		l.renumber()      // a late request for a dead letter is rejected
	case EventChange:
		l.Owner = ""
		l.Serial, l.Changed = s.Serial, s.After > 0
		if s.After == 0 && l.Push {
			l.Attempt--
		}
	}
}

// giveUp applies EventDeadLetter.
func (p *Progress) giveUp(h handle.Receipt, s Settlement, policy *Policy, now time.Time) (Outcome, error) {
	l, done, err := p.forDeadLetter(h, now)
	switch {
	case err != nil:
		return Outcome{}, err
	case done && l == nil:
		return Outcome{}, nil
	case done:
		return Outcome{To: l.State(), Repeated: l}, nil
	}
	attempt := l.Attempt
	l.Attempt = max(attempt, min(s.Attempt, maxClaimedAttempt)) // a consumer that retries by itself has counted more attempts
	exhaustion := policy.exhaustion(EventDeadLetter, l)
	from := l.State()
	to, ok := from.Next(EventDeadLetter, exhaustion, l.Push)
	if !ok {
		l.Attempt = attempt
		return Outcome{}, fmt.Errorf("the message is %s", from)
	}
	defer p.fail(l, Failure{Event: EventDeadLetter, Attempt: l.Attempt, Client: l.Receiver(), Reason: s.Reason, At: now})
	p.effects.Durable = true
	if from == to { // blocked: the message is ready or waits for its retry already
		p.putLease(l)
		return Outcome{To: to, Wait: max(l.Due.Sub(now), 0)}, nil
	}
	if from == Ready {
		heap.Remove(&l.cursor.ready, slices.Index(l.cursor.ready, l))
	}
	switch to {
	case Parked:
		p.park(l, reasonOf(s.Reason, l), now)
		return Outcome{To: to}, nil
	case DeadLetter:
		d := Departure{Event: EventDeadLetter, Early: exhaustion == AttemptsLeft, Reason: reasonOf(s.Reason, l)}
		p.depart(l, d).attempt = attempt
		return Outcome{To: to}, nil
	}
	p.block(l) // a blocked message group treats the request as a failure
	l.setDue(now, p.interval(l, policy))
	p.set(l, to)
	p.putLease(l)
	return Outcome{To: to, Wait: max(l.Due.Sub(now), 0)}, nil
}

// reasonOf returns the reason that the consumer gave. If it gave none, the reason is that the
// attempts are exhausted.
func reasonOf(reason string, l *Lease) string {
	if reason != "" {
		return reason
	}
	return fmt.Sprintf("delivery %d failed, the last attempt", l.Attempt)
}

// Release returns the message of a delivery that did not reach its consumer to the queue. The
// delivery does not count as an attempt. A receipt handle that is not valid has no effect.
func (p *Progress) Release(h handle.Receipt, now time.Time) {
	l, err := p.Current(h, now)
	if err != nil {
		return
	}
	to, _ := l.State().Next(EventRelease, AttemptsLeft, l.Push)
	l.Attempt--
	l.renumber()
	l.setDue(now, 0)
	p.set(l, to)
	p.wake(l)
	p.putLease(l)
}

// Postpone returns the message of a delivery that is not returned to the queue until a time,
// because the message looks too old to a wall clock that is not trusted. The delivery does not
// count as an attempt. A receipt handle that is not valid has no effect.
func (p *Progress) Postpone(h handle.Receipt, until, now time.Time) {
	l, err := p.Current(h, now)
	if err != nil {
		return
	}
	to, _ := l.State().Next(EventSnooze, AttemptsLeft, l.Push)
	l.Attempt--
	l.Owner, l.Negative, l.postponed = "", true, true // Negative: the maximum of attempts does not apply to it
	l.renumber()
	l.setDue(now, until.Sub(now))
	p.set(l, to)
	p.putLease(l)
}

// Postponed returns the number of postponed messages.
func (p *Progress) Postponed() (n int64) {
	for _, l := range p.due {
		if l.postponed && l.State() == WaitingRetry {
			n++
		}
	}
	return n
}

// EndPostponed makes the postponed messages due now, because the wall clock has changed again.
func (p *Progress) EndPostponed(now time.Time) {
	var all []*Lease
	for _, l := range p.due {
		if l.postponed && l.State() == WaitingRetry && l.Due.After(now) {
			all = append(all, l)
		}
	}
	for _, l := range all {
		l.setDue(now, 0)
		heap.Fix(&p.due, l.dueIndex)
		p.putLease(l)
	}
}

// Skip ends a delivery that is not returned, because the receive does not want the message or the
// message is gone. The message is done, but does not count as acknowledged. A receipt handle that
// is not valid has no effect.
func (p *Progress) Skip(h handle.Receipt, now time.Time) {
	if l, err := p.Current(h, now); err == nil {
		p.complete(l)
	}
}
