package producer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/plan"
)

// An outcome is the result of one message in a request, and the decision after it.
type outcome struct {
	it       *item
	receipt  tidegate.Receipt
	err      error
	lane     string // the endpoint of the request's lane; empty without one
	in       Inputs
	decision Decision
	ended    time.Time // end of the attempt

	operation Operation
	skipped   bool // the message had ended before
	waiting   bool // the message was not in the request; it waited for the lane
	gone      bool // a waiting message that ended here and did not move to the spool
}

// decide sets the decisions. After a throttled attempt it first waits for the server's settings, if
// they are needed and unknown. That wait is deducted from the backoff wait.
func (t *topic) decide(own *item, outs []outcome) {
	throttled, transient := false, false
	for i := range outs {
		switch o := &outs[i]; tidegate.Classify(o.err) {
		case tidegate.ClassThrottled:
			throttled = true
		case tidegate.ClassTransient:
			transient = true
		}
	}
	p := t.p
	settings := p.settings(t)
	switch {
	case throttled && (p.opts.MaxAttempts == 0 || p.opts.Backoff == nil):
		settings = p.settingsFor(own, t)
	case transient && p.opts.MaxAttempts == 0:
		// Retries after transient failures are immediate, so the send does not wait for the
		// settings: the server that failed may be the one to respond.
		p.askLater(t)
	}
	closed := p.closed.Load()
	now := time.Now()
	t.mu.Lock()
	for i := range outs {
		if o := &outs[i]; !o.skipped {
			o.it.limits.maxAttempts, o.it.limits.backoff = settings.MaxAttempts, settings.Backoff
			o.in = o.it.inputs(o.ended, now, t.good.Load())
		}
	}
	t.mu.Unlock()
	var drawn draws // messages that were throttled together are retried together
	for i := range outs {
		o := &outs[i]
		if o.skipped {
			continue
		}
		o.in.ofError(o.err)
		o.in.Closed = closed
		o.in.Spools = p.spooler != nil && !o.it.drained
		o.in.draw(&o.it.limits, &drawn)
		o.decision = p.decide(&o.in)
	}
}

// decide is Decide with the budget, from which it takes the retry.
func (p *Producer) decide(in *Inputs) Decision {
	d := Decide(*in)
	if d.Stop == NotStopped && d.Class != tidegate.ClassOK && p.opts.Budget != nil && !p.opts.Budget.Spend(p.opts.Priority) {
		in.BudgetSpent = true
		d = Decide(*in)
	}
	return d
}

// draws are the delays drawn from the backoff, by the number of throttles.
type draws struct {
	n    int
	last time.Duration
}

// unconnectedPacing bounds the default pacing after attempts that never had a connection.
const unconnectedPacing = time.Second

// draw sets the delay of the policy. Messages with the same number of throttles have the same
// delay.
func (in *Inputs) draw(l *limits, drawn *draws) {
	switch in.class() {
	case tidegate.ClassThrottled:
		if n := in.Throttles; n != drawn.n {
			*drawn = draws{n, l.backoff.Delay(in.Throttles - 1)}
		}
		in.PolicyDelay = drawn.last
	case tidegate.ClassTransient:
		if n := in.paced() - 1 - in.AtOnce; n >= 0 {
			in.PolicyDelay = l.pacing.Delay(n)
			if in.NotConnected && l.atOnce == retriesAtOnce { // the default; an attempt that waits for a connection is no load
				in.PolicyDelay = min(in.PolicyDelay, unconnectedPacing)
			}
		}
	}
}

// apply carries out the decision about a message after an attempt in lane l, nil if it had none. It
// returns true if the message has ended.
// Messages of the spooled groups move to the spool instead of being retried. The lock is held.
func (t *topic) apply(o *outcome, l *plan.Lane, spooled []string, now time.Time) bool {
	it, d := o.it, o.decision
	switch {
	case d.Stop != NotStopped:
		return t.endItem(it, it.stopped(o), now)
	case d.Class == tidegate.ClassOK:
		t.accept(o)
		return t.endItem(it, nil, now)
	case slices.Contains(spooled, it.Message.MessageGroup):
		return t.endItem(it, it.fail(StopSpool, errBehind), now)
	}
	it.Avoid, it.Due = o.endpoint(), time.Time{}
	delay := d.Delay
	if d.DelaySource == PushBackDelay && l != nil {
		// Another server can have the message after the delay of the policy.
		it.By, it.Until = l, o.ended.Add(delay)
		delay = o.in.PolicyDelay
	}
	if delay > 0 {
		it.Due = o.ended.Add(delay)
	}
	return false
}

// groupsToSpool returns the message groups with a message that will move to the spool. The later
// messages of such a group must follow it.
func (t *topic) groupsToSpool(outs []outcome) (groups []string) {
	if t.p.spooler == nil {
		return nil
	}
	for i := range outs {
		o := &outs[i]
		group := o.it.Message.MessageGroup
		if group == "" || o.it.gone || o.decision.Stop == NotStopped || slices.Contains(groups, group) {
			continue
		}
		if t.p.spools(o.it, o.it.stopped(o)) {
			groups = append(groups, group)
		}
	}
	return groups
}

// stopped returns the error of a message whose decision is a stop.
func (it *item) stopped(o *outcome) *SendError {
	switch d := o.decision; d.Stop {
	case StopContext:
		return it.contextEnded()
	case StopClosed:
		if o.in.Closed {
			return it.fail(StopClosed, errProducerClosed)
		}
		return it.fail(StopClosed, nil) // the transport's error is part of it already
	case StopDeadline:
		return it.tooLate(d.Needed, o.in.Remaining, nil)
	case StopExhausted:
		var cause error
		if o.in.NotConnected {
			cause = fmt.Errorf("no connection to the server for %v", o.in.UnconnectedFor.Round(time.Second))
		}
		return it.fail(d.Stop, cause)
	default:
		return it.fail(d.Stop, nil)
	}
}

// maxPause bounds the pause of a throttled lane if the server does not request one. A throttled
// message can wait longer, because its delay grows with each throttle.
const maxPause = 5 * time.Second

// accept completes the receipt.
func (t *topic) accept(o *outcome) {
	t.good.Store(true)
	t.down = false
	it := o.it
	it.receipt = o.receipt
	it.receipt.Attempts = it.attempts
	if it.receipt.MessageID == "" {
		it.receipt.MessageID = it.Message.ID
	}
	if it.receipt.Topic == "" {
		it.receipt.Topic = it.Message.Topic
	}
}

// endpoint returns the endpoint of the receipt or of the error, or that of the lane if they have
// none.
func (o *outcome) endpoint() string {
	if o.err == nil && o.receipt.Endpoint != "" {
		return o.receipt.Endpoint
	}
	if e, ok := errors.AsType[*tidegate.Error](o.err); ok && e.Endpoint != "" {
		return e.Endpoint
	}
	return o.lane
}

// maxUntried is the time for which pauses do not count for a message without an attempt.
const maxUntried = 2 * time.Minute

// untried reports whether pauses do not count for the message: it has had no attempt, and nothing
// else can have the message meanwhile. Only its deadline can end such a message.
func (it *item) untried(now time.Time, spools bool) bool {
	if it.attempts > 0 || spools {
		return false
	}
	if it.pausedSince.IsZero() {
		it.pausedSince = now
	}
	return now.Sub(it.pausedSince) < maxUntried
}

// adapt updates the lane of a request. It returns the waiting messages that the throttled lane
// ends: a pause that a message waits for counts as a throttled attempt of the message, at the pace
// of its own backoff, unless the message is untried. The lock is held.
func (t *topic) adapt(r *plan.Request, outs []outcome, now time.Time) (ended []outcome) {
	l := r.Lane
	l.Deciding = false
	var throttle *outcome
	var pause time.Duration
	for i := range outs {
		o := &outs[i]
		switch {
		case o.skipped:
		case o.err == nil:
			l.Succeeded(r)
		case notConnected(o.err): // the server knows nothing of it
		case errors.Is(o.err, errAttemptTimeout):
			l.TimedOut(r)
		case o.in.class() == tidegate.ClassThrottled:
			// This is enough for messages that were not throttled themselves.
			d := tidegate.RetryAfter(o.err)
			if d == 0 && t.p.observer == nil {
				d = l.NextPause(min(o.in.PolicyDelay, maxPause))
			}
			if throttle == nil || d < pause {
				throttle, pause = o, d
			}
		}
	}
	if throttle == nil || !l.Pause(r, throttle.ended, pause, throttle.err) {
		return nil
	}
	for _, queued := range t.queue.Behind(l, now) {
		it := owner(queued)
		// It followed another one to the spool, is about to leave, or its pause is counted already.
		if it.gone || it.ctx.Err() != nil || now.Before(it.charged) {
			continue
		}
		untried := it.untried(now, t.p.spooler != nil)
		if !untried {
			it.waited++
			it.throttle(now)
			it.charged = now.Add(it.limits.backoff.Delay(it.throttles - 1))
		}
		o := outcome{it: it, err: throttle.err, ended: now, waiting: true, in: it.inputs(now, now, true)}
		o.in.ofError(throttle.err)
		o.in.PolicyDelay = max(0, l.PausedUntil.Sub(now))
		o.in.RetryAfter = 0
		if o.decision = Decide(o.in); o.decision.Stop == NotStopped || untried && o.decision.Stop != StopDeadline {
			continue
		}
		why := fmt.Errorf("the server throttles the topic: %w", throttle.err)
		e := it.fail(o.decision.Stop, why)
		if o.decision.Stop == StopDeadline {
			e = it.tooLate(o.decision.Needed, o.in.Remaining, why)
		}
		o.gone = t.endQueued(it, e, now)
		ended = append(ended, o)
	}
	return ended
}
