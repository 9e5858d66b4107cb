package producer

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/retry"
)

// end ends a pending message with an error, or without one if the server accepted it. If end
// returns true, the caller has to call complete for the message afterwards. Otherwise the message
// moves to the spool. The lock is held.
func (t *topic) end(it *item, err *SendError, now time.Time) (ended bool) {
	spools := err != nil && t.spools(it, err) // before the message leaves its request
	if it.state, it.err = delivered, err; err != nil {
		it.state = failedState(err)
	}
	if it.done != nil {
		it.unwatch = it.watched.Leave()
	}
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
		for other := range t.inRequest(group) {
			if other == it {
				t.end(it, err, now)
				continue
			}
			other.history.Maybe = other.history.Maybe || r.Call.sent
			t.end(other, other.fail(StopSpool, errBehind), now)
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

// inRequest yields the messages of a message group that are in a request and have no result, in
// their order. Each may end while it is yielded. The lock is held.
func (t *topic) inRequest(group string) iter.Seq[*item] {
	return func(yield func(*item) bool) {
		r := t.queue.RequestOf(group)
		if r == nil {
			return
		}
		for _, planned := range r.Items {
			it := planned.Of
			if it.state == pending && it.Message.MessageGroup == group && !yield(it) {
				return
			}
		}
	}
}

// lateBefore returns a message that has to leave before this one, or nil: with a spool, an older
// message of the same message group that is in a request and whose ctx has ended. Callers often
// give the messages of a group the same deadline, and their goroutines wake in any order. The lock
// is held.
func (t *topic) lateBefore(it *item, now time.Time) *item {
	if t.p.spooler == nil || it.Message.MessageGroup == "" || it.Request() != nil {
		return nil
	}
	for older := range t.inRequest(it.Message.MessageGroup) {
		if older.ended(now) != nil {
			return older
		}
	}
	return nil
}

// spools reports whether a message that ends with err moves to the spool: it may succeed later, and
// its caller has not cancelled it. A message at its deadline moves there, unless it waits behind an
// older message of its group that is in a request: a server may accept the older one in a moment,
// so that one cannot move. The lock is held.
func (t *topic) spools(it *item, err *SendError) bool {
	if t.p.spooler == nil || it.origin == fromSpool || it.origin == halfMessage {
		return false
	}
	switch err.Reason {
	case StopExhausted, StopThrottled, StopPushedBack, StopDeadline, StopLimiter, StopBudget, StopClosed, StopSpool:
		return true
	case StopContext:
		if it.Message.MessageGroup != "" && it.Request() == nil {
			for range t.inRequest(it.Message.MessageGroup) {
				return false
			}
		}
		err := it.ctx.Err() // nil if the timer of the ctx is late
		return err == nil || errors.Is(err, context.DeadlineExceeded)
	default:
		return false
	}
}

// hopeless ends the messages that wait for the pause of a lane which leaves no time before their
// deadline. A message that waits for its own delay is none of them. The lock is held.
func (t *topic) hopeless(now time.Time, items ...*item) (ended []*item) {
	for _, it := range items {
		if it.state != pending || !it.Queued() {
			continue
		}
		l := t.queue.PauseOf(&it.Item, now)
		if l == nil {
			continue
		}
		needed := retry.Sum(l.PausedUntil.Sub(now), it.limits.Floor)
		deadline, ok := it.ctx.Deadline()
		left := deadline.Sub(now)
		if ok && left < needed && t.endWithGroup(it, it.tooLate(needed, left, l.Throttle), now) {
			ended = append(ended, it)
		}
	}
	return ended
}

// leaveAll is leave for several messages. If OnAttempt ends the goroutine, another one continues.
// leaveAll returns the number of messages that it ended, without those of the spool.
func leaveAll(items []*item, aborted bool) (left int) {
	i := 0
	defer func() {
		if i < len(items) {
			go leaveAll(items[i:], aborted)
		}
	}()
	for i < len(items) {
		it := items[i]
		i++
		if it.topic.leave(it, aborted) && it.origin != fromSpool {
			left++
		}
	}
	return left
}

// leave ends a message whose ctx ended or that Close aborts. If the message is in a request under
// way, that request counts as an attempt, and the message does not wait for its response. leave
// returns false if the message had ended before.
func (t *topic) leave(it *item, aborted bool) (left bool) {
	t.mu.Lock()
	now := time.Now()
	for !aborted && it.state == pending {
		older := t.lateBefore(it, now)
		if older == nil {
			break
		}
		t.mu.Unlock()
		t.leave(older, false)
		t.mu.Lock()
		now = time.Now()
	}
	if it.state != pending {
		t.mu.Unlock()
		return false
	}
	cause := errProducerClosed
	if !aborted {
		cause = it.ended(now)
	}
	o := outcome{it: it, ended: now, skipped: true}
	r := it.Request()
	if r != nil && r.Call.sent {
		o.skipped = false
		o.err = &tidegate.Error{
			Op: "SendMessage", Subject: t.name, Endpoint: r.Lane.Endpoint, MaybeStored: true,
			Message: "the call ended before the response", Err: cause,
		}
		o.in = it.record(o.err, r.Call.began, now)
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
	if ended {
		defer t.p.complete([]*item{it}) // also if OnAttempt ends this goroutine
	}
	if !o.skipped {
		t.observe(len(r.Items), &o, r.Call.began)
	}
	return true
}
