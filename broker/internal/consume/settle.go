package consume

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// Ack marks a delivery as consumed.
func (p *Progress) Ack(h Handle, now time.Time) error {
	l, err := p.Current(h, now)
	if err != nil {
		return err
	}
	p.complete(l)
	p.stats.Acked++
	p.effects.Durable = true
	return nil
}

// verdicts has the event of each verdict that Settle takes.
var verdicts = map[transport.VerdictKind]Event{
	transport.Retry: EventFail, transport.NegativeAck: EventNegativeAck, transport.Snooze: EventSnooze, transport.DeadLetter: EventDeadLetter,
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

// Settle applies a verdict to the delivery of receipt handle h: a Retry, for which the delay may be
// transport.BySchedule, a NegativeAck, a Snooze, or a DeadLetter. attempt is the delivery attempt
// as the consumer counts it, for a DeadLetter alone. If it returns an error, nothing has changed.
func (p *Progress) Settle(h Handle, v transport.Verdict, attempt int, policy *Policy, now time.Time) (Outcome, error) {
	e, ok := verdicts[v.Kind]
	switch {
	case !ok:
		return Outcome{}, fmt.Errorf("a verdict %s is no settlement", v.Kind)
	case e == EventDeadLetter:
		return p.giveUp(h, v, attempt, policy, now)
	}
	l, err := p.Current(h, now)
	if err != nil {
		return Outcome{}, err
	}
	return p.settle(l, e, v.Reason, policy, now, func() { p.reschedule(l, v, policy, now) })
}

// ChangeInvisible changes the invisible duration of the delivery of receipt handle h, whose handle
// then has the serial number. Zero returns the message to the queue: for a simple consumer that is
// a timeout, for a push consumer a release, and the attempt does not count. If it returns an error,
// nothing has changed.
func (p *Progress) ChangeInvisible(h Handle, d time.Duration, serial uint32, policy *Policy, now time.Time) (Outcome, error) {
	l, err := p.Current(h, now)
	if err != nil {
		return Outcome{}, err
	}
	e := EventChange
	switch left := l.Since.Add(p.config.MaxInvisible).Sub(now); {
	case d == 0 && l.Push:
		e = EventRelease
	case d == 0:
		e = EventTimeout
	case d > left:
		return Outcome{}, &TooLongError{Left: max(left, 0)}
	}
	out, err := p.settle(l, e, "", policy, now, func() {
		l.setDue(now, d)
		l.Owner, l.Serial, l.Changed = "", serial, d > 0
		if e == EventRelease {
			l.Attempt--
		}
	})
	if out.To == Parked { // by the timeout of the last attempt
		l.Serial = serial
	}
	return out, err
}

// settle applies an event of a consumer to a lease. If the message stays with the group, reschedule
// changes its lease, except for the state.
func (p *Progress) settle(l *Lease, e Event, reason string, policy *Policy, now time.Time, reschedule func()) (Outcome, error) {
	exhaustion := policy.exhaustion(e, l)
	to, ok := l.State().Next(e, exhaustion, l.Push)
	if !ok {
		return Outcome{}, fmt.Errorf("the message is %s", l.State())
	}
	if e == EventFail || e == EventNegativeAck {
		defer p.fail(l, Failure{Event: e, Attempt: l.Attempt, Client: l.Receiver(), Reason: reason, At: now})
	}
	p.effects.Durable = true
	if exhaustion == ThenBlock && (e == EventFail || e == EventNegativeAck || e == EventTimeout) {
		p.block(l)
	}
	switch to {
	case Parked:
		p.park(l, reasonOf(reason, l), now)
		return Outcome{To: to}, nil
	case DeadLetter:
		p.depart(l, Departure{Event: e, Early: e == EventNegativeAck, Reason: reasonOf(reason, l)})
		return Outcome{To: to}, nil
	}
	reschedule()
	p.set(l, to)
	if to == Ready {
		p.wake(l)
	}
	p.putLease(l)
	return Outcome{To: to, Wait: max(l.Due.Sub(now), 0)}, nil
}

// reschedule changes the lease as a Retry, NegativeAck or Snooze requires, except for its state.
func (p *Progress) reschedule(l *Lease, v transport.Verdict, policy *Policy, now time.Time) {
	l.setDue(now, v.Delay)
	switch v.Kind {
	case transport.Retry:
		if v.Delay == transport.BySchedule || l.Push && policy.Address != nil {
			l.setDue(now, p.interval(l, policy))
		}
	case transport.NegativeAck:
		l.Negative = true
	case transport.Snooze:
		l.Owner = ""
		l.Attempt--
		l.Negative = true // a maximum that is lowered later does not make it a dead letter
		l.renumber()      // a late request for a dead letter is rejected
	}
}

// giveUp applies EventDeadLetter.
func (p *Progress) giveUp(h Handle, v transport.Verdict, claimed int, policy *Policy, now time.Time) (Outcome, error) {
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
	l.Attempt = max(attempt, min(claimed, maxClaimedAttempt)) // a consumer that retries by itself has counted more attempts
	exhaustion := policy.exhaustion(EventDeadLetter, l)
	from := l.State()
	to, ok := from.Next(EventDeadLetter, exhaustion, l.Push)
	if !ok {
		l.Attempt = attempt
		return Outcome{}, fmt.Errorf("the message is %s", from)
	}
	defer p.fail(l, Failure{Event: EventDeadLetter, Attempt: l.Attempt, Client: l.Receiver(), Reason: v.Reason, At: now})
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
		p.park(l, reasonOf(v.Reason, l), now)
		return Outcome{To: to}, nil
	case DeadLetter:
		d := Departure{Event: EventDeadLetter, Early: exhaustion == AttemptsLeft, Reason: reasonOf(v.Reason, l)}
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
func (p *Progress) Release(h Handle, now time.Time) {
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
func (p *Progress) Postpone(h Handle, until, now time.Time) {
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
func (p *Progress) Skip(h Handle, now time.Time) {
	if l, err := p.Current(h, now); err == nil {
		p.complete(l)
	}
}

// A Departure is a message on its way out of the topic: to the dead letters, to a retry topic, or
// to an expiry address. The caller writes it there and then calls Departed or Returned. Meanwhile
// the lease has the state DeadLetter, and no event applies to it.
type Departure struct {
	Lease   *Lease
	Event   Event // that caused it
	From    State // the state that Returned restores
	Tries   int   // deliveries, as the consumer counts them
	Rewound int64 // of its cursor
	Expired bool  // it was not delivered, because it was too old
	Early   bool  // it was requested before the last attempt, or has another maximum of attempts
	Reason  string

	attempt int // of the lease; Tries is larger if the consumer counted more attempts
}

// A Destination is the result of a Departure.
type Destination uint8

// The destinations.
const (
	ToNowhere        Destination = iota // the message was lost or removed meanwhile
	ToDeadLetters                       // a dead letter was written, or the message is one and stays
	ToRetryTopic                        // a new message was written: this one counts as acknowledged
	ToExpiryAddress                     // the message was older than the expiry delay
	ToBeRemovedAlone                    // the last attempt failed, and there is no topic for dead letters
)

// depart begins the departure of a message. Its lease must not be in the ready heap. d has the
// event, the reason, and whether the departure is early or expired.
func (p *Progress) depart(l *Lease, d Departure) *Departure {
	d.Lease, d.From, d.Tries, d.attempt, d.Rewound = l, l.State(), l.Attempt, l.Attempt, l.cursor.rewound
	d.Reason = shortReason(d.Reason)
	p.set(l, DeadLetter)
	p.effects.Departures = append(p.effects.Departures, d)
	return &p.effects.Departures[len(p.effects.Departures)-1]
}

// Reconsume ends a delivery because its message is sent again, to the retry topic or to the dead
// letter topic.
func (p *Progress) Reconsume(h Handle, reason string, now time.Time) error {
	l, err := p.Current(h, now)
	if err != nil {
		return err
	}
	p.depart(l, Departure{Event: EventReconsume, Reason: reason})
	return nil
}

// ExpireMessage ends a delivery that is not returned because its message is too old. A handle that
// is not valid changes nothing.
func (p *Progress) ExpireMessage(h Handle, reason string, now time.Time) {
	if l, err := p.Current(h, now); err == nil {
		p.depart(l, Departure{Event: EventDeliver, Expired: true, Reason: reason})
	}
}

// Departed removes the lease of a departure after the message has reached its destination. It
// returns false if a removal or a rewind has ended the lease already.
func (p *Progress) Departed(d Departure, to Destination) bool {
	l := d.Lease
	if l.cursor.leases[l.offset] != l {
		return false
	}
	if d.From == Parked {
		p.write(DeleteParked, l, "")
	}
	p.complete(l)
	p.effects.Durable = true
	switch to {
	case ToDeadLetters:
		p.stats.DeadLetters++
		if d.Asked() {
			p.stats.GivenUp++
		}
	case ToRetryTopic:
		p.stats.Acked++
	case ToExpiryAddress:
		p.stats.Expired++
	case ToBeRemovedAlone:
		p.stats.Discarded++
	}
	return true
}

// Asked reports whether a consumer or an operator requested the departure.
func (d *Departure) Asked() bool { return d.Event == EventDeadLetter || d.Event == EventRedrive }

// Returned undoes a departure after the write of its message failed. The lease has its previous
// state, and a receipt handle that was valid is valid again. A lease in flight or waiting for a
// retry is due in one second at the earliest. Returned returns false if a removal or a rewind has
// ended the lease.
func (p *Progress) Returned(d Departure, now time.Time) bool {
	l := d.Lease
	if l.cursor.leases[l.offset] != l {
		return false
	}
	l.Attempt = d.attempt
	if d.From == Inflight || d.From == WaitingRetry {
		if again := now.Add(time.Second); l.Due.Before(again) {
			l.setDue(now, time.Second)
		}
	}
	p.set(l, d.From)
	if d.From == Ready {
		p.wake(l)
	}
	return true
}

// maxReason bounds the reason of a dead letter or of a parked message group, in bytes.
const maxReason = 1 << 10

// shortReason bounds a reason, and keeps it valid UTF-8, which the protocols require.
func shortReason(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return strings.ToValidUTF8(reason, "")
}

// A Fate is where one message is in the consumption of a group.
type Fate struct {
	// State is Ready, Inflight, WaitingRetry, Parked or Held; DeadLetter while the message departs;
	// and Commit if the group is done with it: consumed, a dead letter, skipped or removed.
	State State

	New   bool  // Ready, and never delivered: no cursor has passed it
	Ahead int64 // offsets of the queue before a new message that no cursor has passed

	Attempt int       // deliveries
	Due     time.Time // end of the lease or of the retry interval; parked: since when
	Owner   string    // the client whose heartbeats keep the lease; empty for none
	Blocked bool      // it is retried without end, and blocks its message group

	// Spilled means that the message may be spilled. The state is right if the store has its
	// record; without a record the group is done with the message.
	Spilled bool

	// Head is the first unfinished message of the message group, if the message has to wait for it.
	Head   *store.Place
	Reason string // for which the message group is parked
}

// Fate returns where a message is. The message must exist; messageGroup is its message group.
func (p *Progress) Fate(queue int, offset int64, messageGroup string) Fate {
	if queue >= len(p.cursors) {
		return Fate{State: Ready, New: true, Ahead: offset}
	}
	c := p.cursors[queue]
	mg := p.groups[messageGroup]
	f := Fate{State: Commit}
	l := c.leases[offset]
	switch {
	case offset >= c.next:
		f.State, f.New, f.Ahead = Ready, true, offset-c.next
	case l != nil:
		f.State, f.Attempt, f.Due, f.Owner, f.Blocked = l.State(), l.Attempt, l.Due, l.Owner, l.Blocked
	case mg != nil && mg.spill != nil && mg.spill.has(c, offset):
		f.Spilled = true
		if f.State = Held; mg.spill.reason != "" {
			f.State = Parked
		}
	}
	if mg == nil || mg.head == nil || f.State == Commit {
		return f
	}
	if mg.head != l {
		f.Head = new(p.Place(mg.head))
	}
	if mg.spill != nil && f.State == Parked {
		f.Reason = mg.spill.reason
	}
	return f
}

// has reports whether a message of the message group that a cursor has passed is in the spill.
func (s *spill) has(c *cursor, offset int64) bool {
	for i := range s.segments {
		if part := &s.segments[i]; part.cursor == c && part.messages > 0 && part.from <= offset {
			return true
		}
	}
	return false
}

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
	Address *RetryRules
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

func (p *Progress) draw(l *Lease) Draw {
	at := p.Place(l)
	return drawFrom(uint64(p.config.Group), uint64(at.Topic), uint64(at.Queue), uint64(at.Offset), uint64(l.Serial), uint64(l.Attempt))
}
