package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

// hire starts workers.
func (r *run) hire(n int) {
	for range n {
		r.effects.Go(r.worker)
	}
}

// worker handles deliveries until there are no more. A handler that calls runtime.Goexit ends the
// worker, and another worker replaces it.
func (r *run) worker() {
	ended, replaced := false, false
	defer func() {
		if !ended && !replaced {
			r.hire(r.hand.leave())
		}
	}()
	for !replaced && r.handleNext(&replaced) {
	}
	ended = true
}

// handleNext handles one delivery, and returns false if there will be no more. replaced becomes
// true if another worker has replaced this one in the meantime.
func (r *run) handleNext(replaced *bool) bool {
	// Not below r.handlers: it would list each handler's context, under one lock. hand.stop ends
	// the handlers instead.
	ctx, cancel := context.WithCancelCause(r.detached)
	defer cancel(nil)
	it := r.hand.take(cancel)
	if it == nil {
		return false
	}
	it.choice = r.policies.Choose(&it.d.Message)
	start := time.Now()
	stop := func() {}
	if r.batchHandler == nil { // a batch is watched as a whole
		stop = r.watchStuck(it, it.d)
	}
	defer func() {
		took := time.Since(start)
		stop()
		*replaced = r.hand.wasReplaced(it)
		r.handled(it, took)
	}()
	it.ctx = deliveryContext{ctx, it, r}
	r.call(&it.ctx, it.d, &it.result)
	return true
}

// handled decides about a delivery after the end of its handler or of the handler's goroutine.
func (r *run) handled(it *item, took time.Duration) {
	if it.duration = took; r.batchHandler != nil {
		it.duration = time.Duration(it.batchTook.Load())
	}
	failure := it.result.failure
	it.Failure = failure
	it.d = nil // the program owns it from here on
	if r.late() {
		it.grace = time.Now().Add(lastTry)
	}
	h := handled{took: took, failed: failure != nil && !failure.Snooze, decided: failure != nil && failure.DeadLetter}
	switch {
	case failure == nil:
		h.decision = verdict.Decision{Act: verdict.Ack}
	case errors.Is(context.Cause(r.handlers), ErrShutdown):
		// The shutdown interrupted the handler, so the failure does not count against the message.
		h.decision = verdict.Decision{Verdict: transport.Verdict{Kind: transport.Release}}
		it.cancelled = true
	default:
		h.decision = verdict.Judge(it.current.Attempt, failure, r.rulesFor(it))
		if h.decision.Plain {
			it.Refused = errReconsume(&it.current)
		}
	}
	carryOut, c := r.hand.returned(it, h, time.Now())
	if carryOut {
		r.carryOut(it)
	}
	r.follow(c)
}

// A result is the error of a handler and its content.
type result struct {
	err     error
	failure *verdict.Failure
}

// call runs the handler and reads its error. It stores the result in res, because the goroutine can
// end in any function of the program, also while its error is read. res is therefore a failure
// until the error has been read.
func (r *run) call(ctx context.Context, d *tidegate.Delivery, res *result) {
	returned, read, id := false, false, d.ID
	var err error // the handler's error
	defer func() {
		if !read {
			r.panicked(ctx, id, recover(), err, returned, res)
		}
	}()
	err = r.handler(ctx, d)
	returned = true
	f := r.readError(err)
	res.err, res.failure, read = err, f, true
}

// readError returns the content of the handler's error after the program's Classify.
func (r *run) readError(err error) *verdict.Failure {
	if err == nil || r.opts.Classify == nil {
		return verdict.Read(err)
	}
	return verdict.Read(r.opts.Classify(err))
}

// readPanic is verdict.Read for a panic. If its value is an error that cannot be read either, a
// text replaces it.
func readPanic(p *PanicError) (f *verdict.Failure) {
	defer func() {
		if recover() != nil {
			p.Value = verdict.Show(p.Value)
			f = verdict.Read(p)
		}
	}()
	return verdict.Read(p)
}

// panicked returns the failure for a panic with v, or for the end of the goroutine if v is nil. It
// happened in the handler, or after the handler had returned err.
func (r *run) panicked(ctx context.Context, id string, v any, err error, returned bool, res *result) {
	p := &PanicError{Value: verdict.Goexit, Stack: debug.Stack()}
	fail := func(f *verdict.Failure) { res.err, res.failure = p, f }
	fail(&verdict.Failure{Reason: p.Error()})
	defer func() { r.logPanic(ctx, "handler panicked", id, p.Value, p.Stack) }()
	if v != nil {
		p.Value = fmt.Sprintf("a %T", v)
		fail(&verdict.Failure{Reason: p.Error()})
	}
	if returned {
		v = verdict.Unreadable(err, v)
	}
	if v != nil {
		full := &PanicError{Value: v, Stack: p.Stack}
		f := readPanic(full)
		p = full
		fail(f)
	}
}

// FinalAttempt reports whether the delivery of a handler's ctx is the message's last attempt. After
// its failure the message becomes a dead letter, unless the group's settings or a policy set
// another end. FinalAttempt uses the policies of the consumer and the number of attempts that the
// server announced for the group. The server's number can have changed since. known is false, and
// final too, if the server has not announced a number, or ctx is not the context of a handler.
func FinalAttempt(ctx context.Context) (final, known bool) {
	c, ok := ctx.Value(deliveryKey{}).(*deliveryContext)
	if !ok {
		return false, false
	}
	most := c.run.maxAttempts(c.it)
	return most > 0 && c.it.current.Attempt >= most, most != 0
}

type deliveryKey struct{}

// A deliveryContext is a handler's context with its delivery.
type deliveryContext struct {
	context.Context //nolint:containedctx // it is one
	it              *item
	run             *run
}

// Value returns the context itself for deliveryKey.
func (c *deliveryContext) Value(key any) any {
	if key == (deliveryKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// maxAttempts returns the maximum of attempts of the delivery's message: 0 if it is unknown,
// negative if there is none.
func (r *run) maxAttempts(it *item) int {
	own, server := it.choice.MaxAttempts, r.announced(it)
	if own > 0 && (server <= 0 || own < server) {
		return own
	}
	return server
}

// announced returns the maximum of attempts that the server announced for the delivery: 0 if none,
// negative for no limit.
func (r *run) announced(it *item) int {
	s := r.settingsOf(it.source.topic, it.current.Endpoint)
	if it.current.Topic != it.source.topic.name { // a retry topic has other settings
		return 0
	}
	if s.MaxAttempts == 0 && it.caps != (transport.Capabilities{}) {
		return verdict.DefaultMaxAttempts
	}
	return s.MaxAttempts
}
