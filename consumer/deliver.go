package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// deliver owns one delivery from its receipt to its settlement. The handler
// gets a goroutine of its own, so that this one can keep the lease.
func (r *run) deliver(h *held) {
	o := Outcome{
		Topic: h.current.Topic, Group: r.sub.Group, MessageID: h.current.ID,
		MessageGroup: h.current.MessageGroup, Attempt: h.current.Attempt,
	}
	r.handle(h, &o)
	if o.Disposition != Acked && o.Disposition != DeadLettered {
		r.lines.fail(h.turn) // also where the server was told first, and refused
	}
	r.lines.finish(h.turn)
	r.observe(o)
}

func (r *run) handle(h *held, o *Outcome) {
	switch e := r.awaitTurn(h); {
	case e == leaseLost:
		o.Disposition, o.SettleErr = LeaseLost, h.lostErr
		return
	case e == stopped:
		r.release(h, o)
		return
	}
	ctx, cancel := context.WithCancelCause(r.handlers)
	defer cancel(nil)
	start := time.Now()
	done := make(chan struct{})
	var res result // of the handler, once done is closed
	r.work.Go(func() {
		defer close(done)
		defer func() { r.slots <- struct{}{} }()
		r.call(ctx, h.d, &res)
	})
	if r.keep(h, done, nil) == leaseLost {
		cancel(h.loss())
		<-done
	}
	o.Duration, o.Err = time.Since(start), res.err
	switch {
	case h.lost:
		o.Disposition, o.SettleErr = LeaseLost, h.lostErr
	case o.Err != nil && errors.Is(context.Cause(r.handlers), ErrShutdown):
		// It failed because it was not let finish: that is not the message's fault.
		r.release(h, o)
	default:
		r.settle(h, o, res.failure)
	}
}

// awaitTurn waits for the turn in the message group and then for a slot,
// which it leaves taken if it returns happened.
func (r *run) awaitTurn(h *held) event {
	if e := r.keep(h, h.turn.before(), r.stop); e != happened {
		return e
	}
	if h.turn.passedOver() {
		return stopped
	}
	if e := r.keep(h, r.slots, r.stop); e != happened {
		return e
	}
	select {
	case <-r.stop: // the select in keep does not prefer it
		r.slots <- struct{}{}
		return stopped
	default:
		return happened
	}
}

// A result is what a handler returned, and what that says.
type result struct {
	err     error
	failure *failure
}

// goexit is what a handler did whose goroutine ended without a panic, which
// nothing can stop.
const goexit = "runtime.Goexit was called"

// call runs the handler and reads its error. It returns by a pointer because
// the goroutine may end in whatever of the user's is called, also while it is
// read why: so res is a failure from the beginning, and becomes something else
// only by what was read to its end.
func (r *run) call(ctx context.Context, d *tidegate.Delivery, res *result) {
	p := &PanicError{Value: goexit}
	fail := func(f *failure) { res.err, res.failure = p, f }
	fail(&failure{reason: p.Error()})
	var err error // of the handler
	returned, read, id := false, false, d.ID
	defer func() {
		if read {
			return
		}
		v := recover()
		defer func() { r.logPanic(ctx, "handler panicked", id, p.Value, p.Stack) }()
		p.Stack = debug.Stack()
		if v != nil {
			p.Value = fmt.Sprintf("a %T", v)
			fail(&failure{reason: p.Error()})
		}
		if returned {
			v = unreadable(err, v)
		}
		if v != nil {
			full := &PanicError{Value: v, Stack: p.Stack}
			f := readPanic(full)
			p = full
			fail(f)
		}
	}()
	err = r.handler(ctx, d)
	returned = true
	f := readError(err)
	res.err, res.failure, read = err, f, true
}

// unreadable tells of an error whose methods panicked with v, or ended the
// goroutine if that is nil.
func unreadable(err error, v any) string {
	if v == nil {
		return fmt.Sprintf("the error that it returned, of type %T, cannot be read: %s", err, goexit)
	}
	return fmt.Sprintf("the error that it returned, %s of type %T, cannot be read: %s", show(err), err, show(v))
}

// settle tells the server what became of the delivery.
func (r *run) settle(h *held, o *Outcome, f *failure) {
	rules := r.currentRules()
	v := judge(h.current.Attempt, f, rules)
	if v.action == retry {
		r.lines.fail(h.turn)
	}
	result, err := r.tell(h, v)
	if v.action == deadLetterNow && err != nil && permanent(err) {
		// The server keeps no dead letters for us. Nothing may get lost.
		r.log.Warn("dead letter refused, retrying the message", "topic", h.current.Topic, "message_id", h.current.ID, "error", err)
		v = ladderVerdict(h.current.Attempt, f, rules)
		r.lines.fail(h.turn)
		result, err = r.tell(h, v)
	}
	o.SettleErr = err
	switch {
	case errors.Is(err, errPerhaps):
		o.Disposition = PerhapsSettled
	case err != nil && errors.Is(err, tidegate.ErrInvalidHandle):
		o.Disposition = LeaseLost
	case err != nil:
		o.Disposition = Unsettled
	case v.action == ack:
		o.Disposition = Acked
	case v.action == deadLetterNow, result.Fate == transport.FateDeadLetter:
		o.Disposition = DeadLettered
	case result.Fate == transport.FateParked:
		o.Disposition = Parked
	case result.Fate == transport.FateAgain:
		o.Disposition, o.Delay = Retried, result.Delay
	default:
		o.Disposition, o.Delay = Retried, v.delay
	}
}

// release gives the delivery back. Its invisible time ends now instead of later;
// on servers with Capabilities.Suspend that is not even a failed attempt.
func (r *run) release(h *held, o *Outcome) {
	r.lines.fail(h.turn)
	ctx, cancel := context.WithDeadline(r.detached, earliest(h.until, time.Now().Add(settleTimeout)))
	defer cancel()
	_, err := r.transport.ChangeInvisibleDuration(ctx, &h.current, 0)
	if h.unsure && errors.Is(err, tidegate.ErrInvalidHandle) && r.recover(ctx, h) == nil {
		_, err = r.transport.ChangeInvisibleDuration(ctx, &h.current, 0)
	}
	if err != nil {
		o.Disposition, o.SettleErr = Unsettled, fmt.Errorf("release: %w", err)
		return
	}
	o.Disposition = Released
}
