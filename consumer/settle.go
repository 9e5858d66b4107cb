package consumer

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/consumer/internal/failure"
	"github.com/tidegate/tidegate/consumer/internal/settlement"
	"github.com/tidegate/tidegate/transport"
)

const (
	// settleTimeout bounds one settlement attempt.
	settleTimeout = 3 * time.Second

	// lastTry bounds the settlement of a delivery whose handler returned after the shutdown time.
	lastTry = time.Second
)

// settleBackoff paces repeated settlements.
var settleBackoff = backoff.Exponential{
	Initial: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, Max: 5 * time.Second, MinConnectTimeout: 20 * time.Second,
}

// conclude sets the disposition of the delivery after its last settlement attempt, which ended with
// err.
func (it *item) conclude(res transport.RetryResult, err error) {
	end, delay, err := it.State.Conclude(res, err)
	it.disposition, it.delay, it.settleErr = Disposition(end), delay, err
}

// carryOut starts to settle a delivery. It does not block.
func (r *run) carryOut(it *item) {
	switch it.Verdict.Action {
	case decision.Forget:
		r.conclude(it, transport.RetryResult{}, it.lostErr)
	case decision.Ack, decision.Discard:
		r.acknowledge(it)
	default:
		r.settlers.Do(func() {
			ctx, cancel := r.tryContext(it.grace)
			defer cancel()
			res, err := r.attempt(ctx, it)
			r.attempted(it, res, err)
		})
	}
}

// attempt makes one settlement attempt, except for acknowledgements.
func (r *run) attempt(ctx context.Context, it *item) (res transport.RetryResult, err error) {
	v := &it.Verdict
	switch v.Action {
	case decision.DeadLetterNow:
		return r.transport.DeadLetter(ctx, &it.current, v.Reason)
	case decision.SnoozeFor:
		return res, r.transport.Snooze(ctx, &it.current, v.Delay) // see rulesFor
	case decision.ReconsumeIn:
		return r.transport.Reconsume(ctx, &it.current, v.Mode) // likewise
	case decision.GiveBack:
		return res, r.transport.Release(ctx, &it.current)
	}
	delay := v.Delay
	if v.ByServer {
		delay = transport.BySchedule
	}
	return r.transport.Retry(ctx, &it.current, delay, v.Reason)
}

// attempted handles the result of a settlement attempt. Failed attempts are repeated until the
// lease ends, because a missing acknowledgement causes a redelivery.
func (r *run) attempted(it *item, res transport.RetryResult, err error) {
	harmless := it.Verdict.Action != decision.DeadLetterNow || r.capsOf(it.current.Endpoint).IdempotentDeadLetter
	r.goOn(it, res, it.After(err, harmless, it.unsure))
}

func (r *run) goOn(it *item, res transport.RetryResult, next settlement.Step) {
	switch next {
	case settlement.Finished:
		r.conclude(it, res, nil)
	case settlement.FindHandle:
		r.settlers.Do(func() { r.goOn(it, res, it.Found(r.find(it))) })
	case settlement.Again:
		if it.Last == nil { // the valid handle is known now
			r.carryOut(it)
			return
		}
		delay := max(settleBackoff.Delay(it.Tries), failure.PushBack(it.Last))
		it.Tries++
		if at := time.Now().Add(delay); at.Before(it.lease.Until) && !r.late() {
			r.hand.later(it, at)
			if r.late() { // since the look at it
				r.concludePostponed()
			}
			return
		}
		r.conclude(it, res, it.Last)
	case settlement.RetryInstead:
		r.warn("the server rejected the handler's result; retrying the message", it, it.Last)
		it.Refused = it.Last
		it.Verdict = decision.Again(it.current.Attempt, it.Failure, r.rulesFor(it))
		r.carryOut(it)
	case settlement.Failed:
		r.conclude(it, res, it.Last)
	}
}

// find finds the valid handle by repeating the extension whose response was lost. It does not
// extend the lease.
func (r *run) find(it *item) error {
	ctx, cancel := r.tryContext(it.grace)
	defer cancel()
	handle, err := r.change(ctx, it, max(time.Until(it.lease.Until), time.Millisecond))
	it.takeOver(extension{handle: handle, err: err})
	return err
}

// change extends an invisible time. It can be repeated after a lost response, because the server
// remembers the replaced handle. RocketMQ does not; there a lost response to an extension causes a
// redelivery.
func (r *run) change(ctx context.Context, it *item, d time.Duration) (handle string, err error) {
	if it.unsure && r.capsOf(it.current.Endpoint).RepeatChange {
		return r.transport.RepeatChange(ctx, &it.current, d)
	}
	return r.transport.ChangeInvisibleDuration(ctx, &it.current, d)
}

// tryContext returns the context of one settlement attempt. It outlives Run's context. grace is the
// latest grace of its deliveries.
func (r *run) tryContext(grace time.Time) (context.Context, context.CancelFunc) {
	if grace.IsZero() {
		return context.WithTimeout(r.settling, settleTimeout)
	}
	return context.WithDeadline(r.detached, grace)
}

// late reports whether the shutdown time is over. Only deliveries whose handlers return after it
// have a further settlement attempt, until item.grace.
func (r *run) late() bool { return r.settling.Err() != nil }

// concludePostponed ends the deliveries whose settlement was to be repeated.
func (r *run) concludePostponed() {
	for _, it := range r.hand.postponed() {
		r.conclude(it, transport.RetryResult{}, it.Last)
	}
}

// conclude ends a delivery.
func (r *run) conclude(it *item, res transport.RetryResult, err error) {
	it.conclude(res, err)
	r.observe(it)
	r.follow(r.hand.removeSettled(time.Now(), it))
}
