package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// errAttemptTimeout is the cause of an attempt's own deadline. It does not match
// context.DeadlineExceeded: the caller's deadline has not passed.
var errAttemptTimeout = fmt.Errorf("%w: no response within the attempt's share of the time", tidegate.ErrUnavailable)

// maxLaneChanges bounds the changed lanes in a row that are no attempt. A
// transport that reports nothing else would otherwise keep the producer busy.
const maxLaneChanges = 3

// An outcome is what became of one message in a request, and what follows.
type outcome struct {
	it       *item
	receipt  tidegate.Receipt
	err      error
	lane     string // the endpoint of the request's lane; empty without one
	in       Inputs
	decision Decision
	ended    time.Time // of the attempt
	skipped  bool      // the message had gone before
	waiting  bool      // the message was not in the request, but waited for it
}

// send carries out a request, on the goroutine of own's caller if own is set.
func (t *topic) send(r *request, own *item) {
	if l := t.p.opts.Limiter; l != nil {
		t.limit(l, r)
	}
	items := t.start(r, own)
	if len(items) == 0 {
		r.attempt.cancel()
		t.settle(r, own, nil, nil, nil, r.began)
		return
	}
	msgs := r.oneMessage[:0]
	for _, it := range items {
		msgs = append(msgs, it.msg)
	}
	results := t.p.lanes.SendLane(r.attempt.ctx, r.info, msgs)
	r.attempt.cancel()
	var err error
	if len(results) != len(msgs) {
		results = make([]transport.SendResult, len(msgs))
		err = &tidegate.Error{
			Op: "SendMessage", Subject: t.name, MaybeStored: true,
			Message: fmt.Sprintf("the transport returned %d results for %d messages", len(results), len(msgs)),
		}
	}
	t.settle(r, own, items, results, err, r.began)
}

// start makes the ctx of a request and returns the messages that are still wanted.
// From then on a message that leaves may have been stored.
func (t *topic) start(r *request, own *item) []*item {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	items, await := r.items, false
	if r.alive < len(items) {
		items = slices.DeleteFunc(slices.Clone(items), func(it *item) bool { return it.gone })
	}
	for i, it := range items {
		if share := it.share(now); i == 0 || share < r.share {
			r.share = share
		}
		await = await || it.attempts > 0
	}
	switch {
	case r.attempt.ctx != nil:
	case len(items) == 1:
		r.attempt = newAttempt(items[0], own != nil, await, r.share)
	default:
		base := context.Background() // the request serves several callers, and lives until none is left
		if await {
			base = transport.AwaitConnection(base)
		}
		r.attempt.ctx, r.attempt.cancel = context.WithTimeoutCause(base, r.share, errAttemptTimeout)
	}
	r.sent, r.began = len(items) > 0, now
	return items
}

// limit asks the limiter for each message of the request. Those that it refuses
// end here.
func (t *topic) limit(l ratelimit.Limiter, r *request) {
	r.cancel() // the time of the attempt begins after the wait
	for _, it := range r.items {
		t.mu.Lock()
		gone := it.gone
		ctx, cancel := context.WithCancel(it.ctx)
		r.attempt.cancel, r.attempt.ctx = cancel, nil // Close ends the wait
		t.mu.Unlock()
		if gone {
			cancel()
			continue
		}
		err := ratelimit.Wait(ctx, l, 1)
		cancel()
		if err == nil {
			continue
		}
		var ended []*item
		t.mu.Lock()
		if !it.gone {
			e := it.fail(StopLimiter, fmt.Errorf("limiter: %w", err))
			if it.ctx.Err() != nil {
				e = it.contextEnded()
			}
			t.end(it, e, time.Now())
			ended = append(ended, it)
		}
		t.mu.Unlock()
		t.p.complete(ended)
	}
}

// settle decides for each message of a request what follows its result, or err
// if that is set, and brings the queue up to date.
func (t *topic) settle(r *request, own *item, items []*item, results []transport.SendResult, err error, began time.Time) {
	ended := time.Now()
	outs := r.oneOutcome[:min(len(items), 1)]
	if len(items) > 1 {
		outs = make([]outcome, len(items))
	}
	for i, it := range items {
		outs[i] = outcome{it: it, receipt: results[i].Receipt, err: results[i].Err, ended: ended}
		if r.lane != nil {
			outs[i].lane = r.info.Endpoint
		}
		if err != nil {
			outs[i].err = err
		}
	}
	charged := t.charge(r, outs, ended)
	if charged {
		t.decide(own, outs)
		for i := range outs {
			t.observe(r, &outs[i], began)
		}
	}

	var gone []*item
	now := time.Now()
	t.mu.Lock()
	for i := range outs {
		if o := &outs[i]; charged && !o.it.gone && t.apply(o, now) {
			gone = append(gone, o.it)
		}
	}
	var waited []outcome
	if charged && r.lane != nil {
		waited = t.adapt(r, outs, now)
	}
	for i := range waited {
		gone = append(gone, waited[i].it)
	}
	t.queue.finished(r, now)
	gone = append(gone, t.hopeless(now, r.items...)...)
	t.pump(nil)
	t.mu.Unlock()
	for i := range waited {
		t.observe(r, &waited[i], began)
	}
	t.p.complete(gone)
}

// charge counts the attempt in each message of the request. It returns false if
// the request was no attempt: if the lane had changed, or if the server refused
// all of several messages for a fault of one of them. Such a request is repeated
// in halves, until the message at fault is alone.
func (t *topic) charge(r *request, outs []outcome, ended time.Time) bool {
	changed, refused := len(outs) > 0, len(outs) > 1
	for i := range outs {
		changed = changed && errors.Is(outs[i].err, transport.ErrLaneChanged)
		refused = refused && faultOf(outs[i].err) == MessageFault
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if changed {
		r.lane.MaxMessages = 1
		for i := range outs {
			outs[i].it.changes++
			changed = changed && outs[i].it.changes <= maxLaneChanges
		}
	}
	if refused {
		for i := range outs {
			outs[i].it.limit = (len(outs) + 1) / 2
		}
	}
	r.sent = false // a message that leaves from here on does not leave a request under way
	if changed || refused {
		return false
	}
	for i := range outs {
		o := &outs[i]
		it := o.it
		if o.skipped = it.gone; o.skipped {
			continue
		}
		it.attempts++
		it.changes = 0
		it.last = o.err
		it.maybe = it.maybe || maybeStored(o.err)
		if transport.Classify(o.err) == transport.Throttled && it.ctx.Err() == nil {
			it.throttle(ended)
			if r.lane != nil {
				r.lane.deciding = true
			}
		}
	}
	return true
}

func (it *item) throttle(now time.Time) {
	it.throttles++
	if it.throttledSince.IsZero() {
		it.throttledSince = now
	}
}

// decide fills in the decisions. A throttled attempt first waits for the server's
// settings, if they are needed and not known: a part of its wait.
func (t *topic) decide(own *item, outs []outcome) {
	throttled, transient := false, false
	for i := range outs {
		switch o := &outs[i]; transport.Classify(o.err) {
		case transport.Throttled:
			throttled = true
		case transport.Transient:
			transient = true
		}
	}
	p := t.p
	settings := p.settings(t)
	switch {
	case throttled && (p.opts.MaxAttempts == 0 || p.opts.Backoff == nil):
		settings = p.settingsFor(own, t)
	case transient && p.opts.MaxAttempts == 0:
		// Messages are retried immediately upon failures, so the send does not
		// wait: the server that has just failed may be the one to ask.
		p.askLater(t)
	}
	closed := p.closed.Load()
	var drawn draws // messages that were throttled together return together
	for i := range outs {
		o := &outs[i]
		if o.skipped {
			continue
		}
		it := o.it
		t.mu.Lock()
		it.limits.maxAttempts, it.limits.backoff = settings.MaxAttempts, settings.Backoff
		o.in = it.inputs(o.ended, t.good.Load())
		t.mu.Unlock()
		o.in.ofError(o.err)
		o.in.Closed = closed
		o.in.draw(&it.limits, &drawn)
		o.decision = Decide(o.in)
	}
}

// draws are the delays that the backoff gave by number of throttles.
type draws struct {
	n    int
	last time.Duration
}

// draw fills in the delay of the policy. Messages that were throttled as often as
// the one before get the same delay.
func (in *Inputs) draw(l *limits, drawn *draws) {
	switch in.class() {
	case transport.Throttled:
		if n := in.Throttles; n != drawn.n {
			*drawn = draws{n, l.backoff.Delay(in.Throttles - 1)}
		}
		in.PolicyDelay = drawn.last
	case transport.Transient:
		if n := in.transients() - 1 - in.AtOnce; n >= 0 {
			in.PolicyDelay = l.pacing.Delay(n)
		}
	}
}

// apply carries out the decision about a message; it returns true if that ended.
// The lock is held.
func (t *topic) apply(o *outcome, now time.Time) bool {
	it, d := o.it, o.decision
	switch d.Stop {
	case NotStopped:
		if d.Class == transport.OK {
			t.accept(o)
			t.end(it, nil, now)
			return true
		}
		it.avoid, it.due = o.endpoint(), time.Time{}
		if d.Delay > 0 {
			it.due = o.ended.Add(d.Delay)
		}
		return false
	case StopContext:
		t.end(it, it.contextEnded(), now)
	case StopClosed:
		var cause error // the transport's error is enough
		if o.in.Closed {
			cause = errProducerClosed
		}
		t.end(it, it.fail(StopClosed, cause), now)
	case StopDeadline:
		t.end(it, it.tooLate(d.Needed, o.in.Remaining, nil), now)
	default:
		t.end(it, it.fail(d.Stop, nil), now)
	}
	return true
}

// accept completes the receipt.
func (t *topic) accept(o *outcome) {
	t.good.Store(true)
	it := o.it
	it.receipt = o.receipt
	it.receipt.Attempts = it.attempts
	if it.receipt.MessageID == "" {
		it.receipt.MessageID = it.msg.ID
	}
	if it.receipt.Topic == "" {
		it.receipt.Topic = it.msg.Topic
	}
}

// endpoint is that of the receipt or of the error, or else that of the lane.
func (o *outcome) endpoint() string {
	if o.err == nil && o.receipt.Endpoint != "" {
		return o.receipt.Endpoint
	}
	if e, ok := errors.AsType[*tidegate.Error](o.err); ok && e.Endpoint != "" {
		return e.Endpoint
	}
	return o.lane
}

// adapt brings the lane of a request up to date. It returns the messages that a
// throttled lane ended although they only waited for it: each pause that a
// message waits for counts as a throttled attempt of it. The lock is held.
func (t *topic) adapt(r *request, outs []outcome, now time.Time) (ended []outcome) {
	l := r.lane
	l.deciding = false
	var throttle *outcome
	var pause time.Duration
	for i := range outs {
		o := &outs[i]
		switch {
		case o.skipped:
		case o.err == nil:
			l.succeeded(r)
		case errors.Is(o.err, errAttemptTimeout):
			l.timedOut()
		case o.in.class() == transport.Throttled:
			// Enough for messages that were not throttled themselves.
			d := tidegate.RetryAfter(o.err)
			if d == 0 {
				d = min(o.in.PolicyDelay, maxPause)
			}
			if throttle == nil || d < pause {
				throttle, pause = o, d
			}
		}
	}
	if throttle == nil || !l.pause(r, throttle.ended, pause, throttle.err) {
		return nil
	}
	for _, it := range t.queue.behind(l, now) {
		it.waited++
		it.throttle(now)
		o := outcome{it: it, err: throttle.err, ended: now, waiting: true, in: it.inputs(now, true)}
		o.in.ofError(throttle.err)
		o.in.PolicyDelay = max(0, l.pausedUntil.Sub(now))
		o.in.RetryAfter = 0
		if o.decision = Decide(o.in); o.decision.Stop == NotStopped {
			continue
		}
		why := fmt.Errorf("the server throttles the topic: %w", throttle.err)
		e := it.fail(o.decision.Stop, why)
		if o.decision.Stop == StopDeadline {
			e = it.tooLate(o.decision.Needed, o.in.Remaining, why)
		}
		t.end(it, e, now)
		ended = append(ended, o)
	}
	return ended
}
