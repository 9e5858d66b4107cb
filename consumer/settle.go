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
	// settleTimeout bounds one attempt to settle.
	settleTimeout = 3 * time.Second

	// lastTry bounds the one attempt to settle that is made after the time to shut down.
	lastTry = time.Second
)

// settleBackoff paces repeated settlements.
var settleBackoff = backoff.Exponential{
	Initial: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, Max: 5 * time.Second, MinConnectTimeout: 20 * time.Second,
}

// conclude sets the disposition of the delivery, whose last attempt to settle ended with err.
func (it *item) conclude(res transport.RetryResult, err error) {
	end, delay, err := it.State.Conclude(res, err)
	it.disposition, it.delay, it.settleErr = Disposition(end), delay, err
}

// carryOut begins to settle a delivery, and returns at once.
func (r *run) carryOut(it *item) {
	switch it.Verdict.Action {
	case decision.Forget:
		r.conclude(it, transport.RetryResult{}, it.lostErr)
	case decision.Ack, decision.Discard:
		r.acknowledge(it)
	default:
		r.settlers.Do(func() {
			ctx, cancel := r.tryContext()
			defer cancel()
			res, err := r.tell(ctx, it)
			r.told(it, res, err)
		})
	}
}

// tell makes one attempt to settle, other than to acknowledge.
func (r *run) tell(ctx context.Context, it *item) (res transport.RetryResult, err error) {
	v := &it.Verdict
	switch v.Action {
	case decision.DeadLetterNow:
		if reporter, ok := r.transport.(transport.DeadLetterReporter); ok {
			return reporter.DeadLetterResult(ctx, &it.current, v.Reason)
		}
		return res, r.transport.DeadLetter(ctx, &it.current, v.Reason)
	case decision.SnoozeFor:
		return res, r.transport.(transport.Snoozer).Snooze(ctx, &it.current, v.Delay) // see rulesFor
	case decision.ReconsumeIn:
		return r.transport.(transport.Reconsumer).Reconsume(ctx, &it.current, v.Mode) // likewise
	case decision.GiveBack:
		_, err = r.transport.ChangeInvisibleDuration(ctx, &it.current, 0)
		return res, err
	}
	delay := v.Delay
	if v.ByServer {
		delay = transport.ByLadder
	}
	return r.transport.Retry(ctx, &it.current, delay, v.Reason)
}

// told goes on after an attempt to settle. Attempts are repeated as long as the delivery is ours:
// an acknowledgement that is never made is a duplicate.
func (r *run) told(it *item, res transport.RetryResult, err error) {
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
		if it.Last == nil { // the valid handle was found
			r.carryOut(it)
			return
		}
		delay := max(settleBackoff.Delay(it.Tries), failure.PushBack(it.Last))
		it.Tries++
		if at := time.Now().Add(delay); at.Before(it.lease.Until) && !r.late() {
			r.hand.later(it, at)
			return
		}
		r.conclude(it, res, it.Last)
	case settlement.RetryInstead:
		r.log.Warn("the handler's wish was refused, retrying the message", "topic", it.current.Topic, "message_id", it.current.ID, "error", it.Last)
		it.Refused = it.Last
		it.Verdict = decision.Again(it.current.Attempt, it.Failure, r.rulesFor(it))
		r.carryOut(it)
	case settlement.Failed:
		r.conclude(it, res, it.Last)
	}
}

// find finds the valid handle by repeating the extension whose response was lost. The
// lease becomes no longer.
func (r *run) find(it *item) error {
	ctx, cancel := r.tryContext()
	defer cancel()
	handle, err := r.change(ctx, it, max(time.Until(it.lease.Until), time.Millisecond))
	it.takeOver(extension{handle: handle, err: err})
	return err
}

// change extends an invisible time. It can be repeated after a lost response: the server knows the
// handle that it replaced. A real RocketMQ does not; there a lost response to an extension costs a
// second delivery.
func (r *run) change(ctx context.Context, it *item, d time.Duration) (handle string, err error) {
	if repeater, ok := r.transport.(transport.ChangeRepeater); ok && it.unsure {
		return repeater.RepeatChange(ctx, &it.current, d)
	}
	return r.transport.ChangeInvisibleDuration(ctx, &it.current, d)
}

// tryContext returns the context of one attempt to settle. It outlives the end of Run's context.
func (r *run) tryContext() (context.Context, context.CancelFunc) {
	if r.late() {
		return context.WithTimeout(r.detached, lastTry)
	}
	return context.WithTimeout(r.settling, settleTimeout)
}

// late reports whether the time to shut down is over. Each open settlement is then tried once.
func (r *run) late() bool { return r.settling.Err() != nil }

// conclude ends a delivery.
func (r *run) conclude(it *item, res transport.RetryResult, err error) {
	it.conclude(res, err)
	r.observe(it)
	r.follow(r.hand.removeSettled(time.Now(), it))
}
