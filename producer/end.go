package producer

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/retry"
)

// end ends a pending message with an error, or without one if the server accepted it. If end
// returns true, the caller has to call complete for the message afterwards. Otherwise the message
// moves to the spool. The lock is held.
func (t *topic) end(it *item, err *SendError, now time.Time) (ended bool) {
	spools := t.spools(it, err) // before the message leaves its request
	it.state, it.err = endState(err), err
	it.leaveWatch()
	if r := t.queue.Remove(&it.Item, now); r != nil {
		r.Call.cancel()
	}
	if spools {
		t.spool(it, err)
	}
	return !spools
}

// endWithGroup is end for a message without a result of the transport. If it moves to the spool,
// the messages of its message group follow it, in their order: those in its request, and the queued
// ones. The lock is held.
func (t *topic) endWithGroup(it *item, err *SendError, now time.Time) (ended bool) {
	group := it.Message.MessageGroup
	if group == "" || !t.spools(it, err) {
		return t.end(it, err, now)
	}
	if r := it.Request(); r != nil {
		for _, planned := range r.Items {
			switch other := planned.Of; {
			case other == it:
				t.end(it, err, now)
			case other.state == pending && other.Message.MessageGroup == group:
				other.history.Maybe = other.history.Maybe || r.Call.sent
				t.end(other, other.fail(StopSpool, errBehind), now)
			}
		}
	}
	t.spoolGroup(group, it, err, now)
	return false
}

// spoolGroup moves the queued messages of a message group to the spool, in their order, because a
// message of the group moves there: this one, with its error, or one that was in a request. The
// lock is held.
func (t *topic) spoolGroup(group string, this *item, err *SendError, now time.Time) {
	for _, queued := range t.queue.Group(group) {
		switch it := queued.Of; {
		case it == this:
			t.end(it, err, now)
		case it.origin != fromSpool:
			t.end(it, it.fail(StopSpool, errBehind), now)
		}
	}
}

// spools reports whether a message that ends with err moves to the spool: it may succeed later, and
// its caller has not cancelled it. A message at its deadline moves there, unless an older message
// of its group is in a request: a server may accept that one in a moment, so it cannot move. The
// lock is held.
func (t *topic) spools(it *item, err *SendError) bool {
	if t.p.spooler == nil || it.origin == fromSpool || it.origin == halfMessage || err == nil {
		return false
	}
	switch err.Reason {
	case StopExhausted, StopThrottled, StopPushedBack, StopDeadline, StopLimiter, StopBudget, StopClosed, StopSpool:
		return true
	case StopContext:
		group := it.Message.MessageGroup
		behind := group != "" && it.Request() == nil && t.queue.Flying(group)
		return errors.Is(it.ctx.Err(), context.DeadlineExceeded) && !behind
	default:
		return false
	}
}

// hopeless ends the messages that wait for a pause that leaves no time before their deadline. The
// lock is held.
func (t *topic) hopeless(now time.Time, items ...*item) (ended []*item) {
	if !t.queue.AnyPaused(now) {
		return nil
	}
	for _, it := range items {
		if it.state != pending || !it.Queued() {
			continue
		}
		l := t.queue.PauseOf(&it.Item, now)
		if l == nil {
			continue
		}
		needed := retry.Sum(l.PausedUntil.Sub(now), it.limits.Floor)
		if left, ok := it.left(now); ok && left < needed {
			if t.endWithGroup(it, it.tooLate(needed, left, l.Throttle), now) {
				ended = append(ended, it)
			}
		}
	}
	return ended
}

// leave ends a message whose ctx ended or that Close aborts. If the message is in a request under
// way, that request counts as an attempt, and the message does not wait for its response. leave
// returns false if the message had ended before.
func (t *topic) leave(it *item, aborted bool) (left bool) {
	now := time.Now()
	t.mu.Lock()
	if it.state != pending {
		t.mu.Unlock()
		return false
	}
	cause := errProducerClosed
	if !aborted {
		cause = endCause(it.ctx.Err(), context.Cause(it.ctx))
	}
	o := outcome{it: it, ended: now, skipped: true}
	r := it.Request()
	if r != nil && r.Call.sent {
		it.record(&tidegate.Error{
			Op: "SendMessage", Subject: t.name, Endpoint: r.Lane.Endpoint, MaybeStored: true,
			Message: "the call ended before the response", Err: cause,
		}, r.Call.began, now)
		o.err, o.skipped, o.in = it.history.Last, false, it.inputs(now, now, t.good.Load())
		o.in.OfError(o.err)
		o.in.Closed = aborted
		o.decision = retry.Decide(o.in)
	}
	var ended bool
	if aborted {
		ended = t.end(it, it.fail(StopClosed, cause), now)
		if t.lookup.cancel != nil {
			t.lookup.cancel()
		}
	} else {
		ended = t.endWithGroup(it, it.fail(StopContext, cause), now)
	}
	t.pump(now, nil, false)
	t.mu.Unlock()
	if !o.skipped {
		t.observe(len(r.Items), &o, r.Call.began)
	}
	if ended {
		t.p.complete([]*item{it})
	}
	return true
}
