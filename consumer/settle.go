package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/consumer/internal/failure"
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

// errPerhaps reports that a delivery may have been settled by an earlier attempt.
var errPerhaps = errors.New("an earlier attempt, whose response was lost, may have settled it")

// A settlement is the state of the requests that settle a delivery.
type settlement struct {
	verdict decision.Verdict
	failure *decision.Failure // of the handler, nil for none
	tries   int
	maybe   bool  // an attempt may have worked
	settled error // it seems to have
	refused error // the handler's wish was, which was replaced by a retry
	last    error // of the last attempt

	disposition Disposition
	delay       time.Duration // of a retry
	settleErr   error
}

// A step is the action after an attempt to settle.
type step int

const (
	finished   step = iota
	again           // after a delay
	findHandle      // an extension whose response was lost may have replaced the handle
	retryInstead
	failed
)

// after decides about the step after an attempt that ended with err. harmless reports that a
// repetition does nothing more where an earlier attempt worked. unsure reports that the handle may
// have been replaced.
func (s *settlement) after(err error, harmless, unsure bool) step {
	s.last = err
	if err == nil {
		return finished
	}
	s.maybe = s.maybe || failure.Perhaps(err)
	invalid := errors.Is(err, tidegate.ErrInvalidHandle)
	if s.maybe && invalid {
		s.settled = fmt.Errorf("%w: %w", errPerhaps, err)
	}
	switch {
	case unsure && invalid:
		return findHandle
	case failure.CanRepeat(err, harmless):
		return again
	case (s.verdict.Action == decision.DeadLetterNow || s.verdict.Action == decision.ReconsumeIn) && failure.Permanent(err):
		return retryInstead // the server does not do that for us, and nothing may be lost
	}
	return failed
}

// found decides about the step after an attempt to find the valid handle that ended with err.
func (s *settlement) found(err error) step {
	switch {
	case err == nil:
		s.settled, s.last = nil, nil
		return again
	case errors.Is(err, tidegate.ErrInvalidHandle) || !failure.CanRepeat(err, true):
		return failed
	}
	s.last = err
	return again
}

// conclude sets the disposition of the delivery.
func (s *settlement) conclude(res transport.RetryResult, err error) {
	if err != nil && s.settled != nil {
		err = s.settled
	}
	if s.settleErr = err; err == nil {
		s.settleErr = s.refused
	}
	switch {
	case s.verdict.Action == decision.Forget:
		s.disposition = LeaseLost
	case errors.Is(err, errPerhaps):
		s.disposition = PerhapsSettled
	case err != nil && s.verdict.Action == decision.GiveBack:
		s.disposition, s.settleErr = Unsettled, fmt.Errorf("release: %w", err)
	case err != nil && errors.Is(err, tidegate.ErrInvalidHandle):
		s.disposition = LeaseLost
	case err != nil:
		s.disposition = Unsettled
	case s.verdict.Action == decision.Ack:
		s.disposition = Acked
	case s.verdict.Action == decision.Discard:
		s.disposition = Discarded
	case s.verdict.Action == decision.GiveBack:
		s.disposition = Released
	case s.verdict.Action == decision.SnoozeFor:
		s.disposition, s.delay = Snoozed, s.verdict.Delay
	case s.verdict.Action == decision.DeadLetterNow && res.Fate == transport.FateUntold, res.Fate == transport.FateDeadLetter:
		s.disposition = DeadLettered
	case res.Fate == transport.FateParked:
		s.disposition = Parked
	case s.verdict.Action == decision.ReconsumeIn && !s.verdict.Mode.Negative:
		s.disposition, s.delay = Reconsumed, res.Delay
	case res.Fate == transport.FateAgain:
		s.disposition, s.delay = Retried, res.Delay
	default:
		s.disposition, s.delay = Retried, s.verdict.Delay
	}
}

// carryOut begins to settle a delivery, and returns at once.
func (r *run) carryOut(it *item) {
	switch it.verdict.Action {
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
	v := &it.verdict
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
	harmless := it.verdict.Action != decision.DeadLetterNow || r.capsOf(it.current.Endpoint).IdempotentDeadLetter
	r.goOn(it, res, it.after(err, harmless, it.unsure))
}

func (r *run) goOn(it *item, res transport.RetryResult, next step) {
	switch next {
	case finished:
		r.conclude(it, res, nil)
	case findHandle:
		r.settlers.Do(func() { r.goOn(it, res, it.found(r.find(it))) })
	case again:
		if it.last == nil { // the valid handle was found
			r.carryOut(it)
			return
		}
		delay := max(settleBackoff.Delay(it.tries), failure.PushBack(it.last))
		it.tries++
		if at := time.Now().Add(delay); at.Before(it.lease.Until) && !r.late() {
			r.hand.later(it, at)
			return
		}
		r.conclude(it, res, it.last)
	case retryInstead:
		r.log.Warn("the handler's wish was refused, retrying the message", "topic", it.current.Topic, "message_id", it.current.ID, "error", it.last)
		it.refused = it.last
		it.verdict = decision.Again(it.current.Attempt, it.failure, r.rulesFor(it))
		r.carryOut(it)
	case failed:
		r.conclude(it, res, it.last)
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
	r.follow(r.hand.finish(time.Now(), it))
}
