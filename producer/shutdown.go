package producer

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/ledger"
	"github.com/tidegate/tidegate/producer/internal/retry"
)

// Accounts count the messages that a producer has accepted since New. When all messages have a
// result, as after Shutdown and Close, Accepted is the sum of Delivered, Failed, Spooled and the
// length of Undelivered.
type Accounts struct {
	Accepted  int // by Send, SendAsync, SendBatch, Begin and Transact
	Delivered int // accepted by the server; for a half message, stored as such
	Failed    int // ended with an error, without those in Undelivered
	Spooled   int // on disk in Options.Spool when their callers received the result
	Drained   int // spooled messages that the server accepted, including those of an earlier process

	// Undelivered are the messages that Shutdown or Close aborted and that are not in a spool, in
	// no particular order. Their callers received an error that matches tidegate.ErrClosed.
	Undelivered []Undelivered
}

// An Undelivered is a message that Shutdown or Close aborted.
type Undelivered struct {
	Message     *tidegate.Message // with the ID in its attempts
	MaybeStored bool              // an attempt may have been stored
}

// Flush waits until every message that was accepted before the call has its result and the
// functions given to SendAsync have returned. It returns context.Cause(ctx) if ctx ends first.
// Other goroutines may send during Flush. A function given to SendAsync that calls Flush waits for
// itself, until ctx ends.
func (p *Producer) Flush(ctx context.Context) error { return p.ledger.Flush(ctx) }

// Shutdown stops the producer: it rejects further messages, waits until the accepted ones have
// their results, and returns the accounts. If ctx ends first, Shutdown aborts the remaining
// messages, lists them in Accounts.Undelivered, and returns context.Cause(ctx) too. With
// Options.Spool it moves them to the spool instead. Shutdown does not wait for a transport that
// ignores the cancellation of its request; Close does.
//
// Shutdown also waits for the calls of Transact, Begin, Commit, Rollback and Recall that are under
// way, until ctx ends. It does not wait for a [Transaction] of Begin without a resolution, and
// later resolutions fail with tidegate.ErrClosed: use Transact, or resolve it before.
//
// With Options.Spool Shutdown also stops the sending of spooled messages. It waits for requests
// under way until ctx ends, for at most a second, and then cancels them; their messages stay in the
// spool. The producer does not use the spool after Shutdown has returned.
//
// Shutdown can be called in any state, more than once, and by several goroutines. It must not be
// called from Options.OnAttempt or a function given to SendAsync or Transact, because it waits for
// these: such a call blocks until ctx ends.
func (p *Producer) Shutdown(ctx context.Context) (Accounts, error) {
	p.ledger.Close()
	err := p.ledger.Flush(ctx)
	if err == nil {
		err = p.ledger.AwaitCalls(ctx)
	}
	drained := true
	if p.spooler != nil {
		p.spooler.stop()
		drained = err == nil && p.spooler.wait(ctx)
	}
	if err != nil || !drained {
		p.abort("Shutdown")
		<-p.ledger.Settled() // other goroutines may still be storing results
	}
	if p.spooler != nil {
		<-p.spooler.drained
	}
	p.closed.Store(true)
	p.end(errProducerClosed)
	p.events.Close()
	return p.accounts(), err
}

// accounts returns the current accounts.
func (p *Producer) accounts() Accounts {
	c, aborted := p.ledger.Report()
	a := Accounts{Accepted: c.Accepted, Delivered: c.Delivered, Failed: c.Failed, Spooled: c.Spooled, Drained: c.Drained}
	for _, it := range aborted {
		a.Undelivered = append(a.Undelivered, Undelivered{Message: it.Message, MaybeStored: it.err.MaybeStored})
	}
	return a
}

// Close stops the producer at once: it aborts the messages without a result with an error that
// matches tidegate.ErrClosed, or moves them to Options.Spool. It calls the functions given to
// SendAsync and waits until all goroutines of the producer have ended. It logs the number of
// aborted messages. Use Shutdown to have them sent, or to receive them.
//
// Close can be called in any state, more than once, and by several goroutines. It must not be
// called from Options.OnAttempt or a function given to SendAsync, because Close waits for these. It
// always returns nil, and leaves the transport open.
func (p *Producer) Close() error {
	p.ledger.Close()
	if p.spooler != nil {
		p.spooler.stop()
	}
	p.abort("Close")
	p.ledger.Running.Wait()
	if p.spooler != nil {
		<-p.spooler.drained
	}
	p.events.Close()
	return nil
}

// abort ends all messages without a result.
func (p *Producer) abort(op string) {
	p.ledger.Stop()
	p.closed.Store(true)
	p.end(errProducerClosed)
	if n := leaveAll(p.ledger.Pending(), true); n > 0 {
		p.log.Warn("messages aborted", "operation", op, "messages", n, "spool", p.spooler != nil)
	}
}

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

// entryOf returns the ledger's record of an item.
func entryOf(it *item) *ledger.Entry[*item] { return &it.entry }

// call calls the function that SendAsync was given for an item.
func (p *Producer) call(it *item) {
	defer p.recovered("the function given to SendAsync panicked", it.Message.ID)
	if it.err != nil {
		it.done(tidegate.Receipt{}, it.err)
		return
	}
	it.done(it.receipt, nil)
}
