package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/transport"
)

// hire starts workers.
func (r *run) hire(n int) {
	for range n {
		r.effects.Go(r.worker)
	}
}

// worker handles one delivery after the other until there are none any more. A handler that calls
// runtime.Goexit ends it, and another one takes its place.
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

// handleNext handles one delivery, and returns false if there will be none any more. replaced
// becomes true if another worker took the place of this one meanwhile.
func (r *run) handleNext(replaced *bool) bool {
	ctx, cancel := context.WithCancelCause(r.handlers)
	defer cancel(nil)
	it := r.hand.take(cancel)
	if it == nil {
		return false
	}
	it.choice = r.policies.Choose(&it.d.Message)
	res, start := &result{}, time.Now()
	stop := func() {}
	if r.batchHandler == nil { // a batch is watched as a whole
		stop = r.watchStuck(it, it.d)
	}
	defer func() {
		took := time.Since(start)
		stop()
		*replaced = r.hand.wasReplaced(it)
		r.handled(it, res, took)
	}()
	r.call(&deliveryContext{ctx, it, r}, it.d, res)
	return true
}

// handled decides about a delivery whose handler returned, or ended its goroutine.
func (r *run) handled(it *item, res *result, took time.Duration) {
	if it.duration = took; r.batchHandler != nil {
		it.duration = time.Duration(it.batchTook.Load())
	}
	it.err, it.Failure = res.err, res.failure
	it.d = nil // the program's alone from here on
	h := handled{took: took, failed: res.failure != nil && !res.failure.Snooze}
	switch {
	case res.failure == nil:
		h.verdict = decision.Verdict{Action: decision.Ack}
	case errors.Is(context.Cause(r.handlers), ErrShutdown):
		// It failed because it was not let finish: that is not the message's fault.
		h.verdict = decision.Verdict{Action: decision.GiveBack}
		it.cancelled = true
	default:
		rules := r.rulesFor(it)
		h.verdict, h.snooze = decision.Judge(it.current.Attempt, res.failure, rules), rules.Snooze
		if h.verdict.Plain {
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
	failure *decision.Failure
}

// call runs the handler and reads its error. It stores the result in res, because the goroutine can
// end in any function of the program, also while its error is read. res is therefore a failure
// until the error has been read.
func (r *run) call(ctx context.Context, d *tidegate.Delivery, res *result) {
	returned, read, id := false, false, d.ID
	var err error // of the handler
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
func (r *run) readError(err error) *decision.Failure {
	if err == nil || r.opts.Classify == nil {
		return decision.Read(err)
	}
	return decision.Read(r.opts.Classify(err))
}

// readPanic is decision.Read of a panic. Its value may be an error that cannot be read either; then
// a text takes its place.
func readPanic(p *PanicError) (f *decision.Failure) {
	defer func() {
		if recover() != nil {
			p.Value = decision.Show(p.Value)
			f = decision.Read(p)
		}
	}()
	return decision.Read(p)
}

// panicked makes a failure of a panic with v, or of the end of the goroutine if v is nil. It
// happened in the handler, or after the handler had returned err.
func (r *run) panicked(ctx context.Context, id string, v any, err error, returned bool, res *result) {
	p := &PanicError{Value: decision.Goexit, Stack: debug.Stack()}
	fail := func(f *decision.Failure) { res.err, res.failure = p, f }
	fail(&decision.Failure{Reason: p.Error()})
	defer func() { r.logPanic(ctx, "handler panicked", id, p.Value, p.Stack) }()
	if v != nil {
		p.Value = fmt.Sprintf("a %T", v)
		fail(&decision.Failure{Reason: p.Error()})
	}
	if returned {
		v = decision.Unreadable(err, v)
	}
	if v != nil {
		full := &PanicError{Value: v, Stack: p.Stack}
		f := readPanic(full)
		p = full
		fail(f)
	}
}

// A Finality reports whether an attempt is the message's last.
type Finality int

// The finalities.
const (
	FinalityUnknown Finality = iota // the server has not announced how many attempts there are
	NotFinal
	Final
)

// String returns the lower-case name.
func (f Finality) String() string {
	switch f {
	case FinalityUnknown:
		return "unknown"
	case NotFinal:
		return "not final"
	case Final:
		return "final"
	}
	return "invalid"
}

// FinalAttempt reports whether the delivery of a handler's ctx is the message's last. After its
// failure the message is given up: it becomes a dead letter, unless the group's settings or a
// policy set another end. FinalAttempt uses the policies of the consumer and the number of attempts
// that the server announced for the group. The server's number can have changed since.
func FinalAttempt(ctx context.Context) Finality {
	if c, ok := ctx.Value(deliveryKey{}).(*deliveryContext); ok {
		return finality(c.it.current.Attempt, c.run.maxAttempts(c.it))
	}
	return FinalityUnknown
}

// finality compares an attempt with the announced number; 0 for none, negative for no limit.
func finality(attempt, most int) Finality {
	switch {
	case most == 0:
		return FinalityUnknown
	case most < 0 || attempt < most:
		return NotFinal
	}
	return Final
}

type deliveryKey struct{}

// A deliveryContext is a handler's context, which knows its delivery.
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

// maxAttempts returns how many attempts the delivery's message has: 0 if that is not known,
// negative for no limit.
func (r *run) maxAttempts(it *item) int {
	own, server := it.choice.MaxAttempts, r.announced(it)
	if own > 0 && (server <= 0 || own < server) {
		return own
	}
	return server
}

// announced returns how many attempts the server announced for the delivery: 0 if none, negative
// for no limit.
func (r *run) announced(it *item) int {
	s := it.source.topic.settings.Load()
	if it.current.Topic != it.source.topic.name { // of a retry topic, whose settings are others
		return 0
	}
	if s.MaxAttempts == 0 && it.caps != (transport.Capabilities{}) {
		return decision.DefaultMaxAttempts
	}
	return s.MaxAttempts
}
