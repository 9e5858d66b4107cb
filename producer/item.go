package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/ledger"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/producer/internal/retry"
	"github.com/tidegate/tidegate/producer/internal/watch"
)

// An item is an accepted message without a result. The first fields are set before the item is
// queued; topic.mu guards the others.
type item struct {
	topic  *topic
	ctx    context.Context //nolint:containedctx // the caller's; an item lives as long as its call
	limits retry.Limits
	done   func(tidegate.Receipt, error) // of SendAsync; nil otherwise
	origin origin                        // set before another goroutine can see the item

	// full means that the producer was full, so that the item goes to the spool. The caller sets it
	// after the ledger admitted the item; the topic reads it from submit on.
	full bool

	plan.Item[*item, roundTrip] // its place in the topic's queue

	history retry.History
	changes int // consecutive attempts that found the lane changed

	// The end of the item. The goroutine that ends it sets state, once; a write to the spool may
	// follow.
	state   state
	receipt tidegate.Receipt
	err     *SendError
	wake    chan struct{} // closed after the end; nil if no goroutine waits

	watched watch.Member[*item] // of the watch that ends the item of a SendAsync with its ctx
	unwatch func() bool         // ends the watch that the item left as the last one; nil otherwise

	entry ledger.Entry[*item] // used by the ledger first, later by the functions
}

// An origin is the way on which a message came to the producer.
type origin uint8

const (
	fromCaller  origin = iota
	fromSpool          // the drain sends it; it does not move to the spool again
	halfMessage        // of a transaction; it is in no queue
)

// A state is the place of a message. It has its result after spooling.
type state uint8

const (
	pending   state = iota // in the queue of its topic or in a request, or on its way there
	spooling               // it has left the queue; the write to the spool decides between the next ones
	delivered              // a server has accepted it
	spooled                // it is on the disk
	failed
	aborted // it failed because Close or Shutdown ended the producer
)

// failedState returns the state of a message that fails with err.
func failedState(err *SendError) state {
	if err.Cause == errProducerClosed { //nolint:errorlint // the producer's own value
		return aborted
	}
	return failed
}

// newItem returns the item of a message.
func newItem(ctx context.Context, msg *tidegate.Message) *item {
	it := &item{ctx: ctx}
	it.Message, it.Of = msg, it
	return it
}

// Share implements plan.Sharer.
func (it *item) Share(now time.Time) time.Duration {
	deadline, _ := it.ctx.Deadline() // zero if there is none
	return it.history.Share(&it.limits, now, deadline)
}

// record counts an attempt that ended with err, and returns the inputs of the decision about it.
func (it *item) record(err error, began, ended time.Time) retry.Inputs {
	gone := it.ctx.Err() != nil
	it.history.Record(err, began, ended, gone)
	it.changes = 0
	deadline, _ := it.ctx.Deadline() // zero if there is none
	in := it.history.Inputs(&it.limits, err, ended, deadline)
	in.RouteGood, in.ContextEnded = it.topic.good.Load(), gone
	return in
}

// fail returns the error of the send.
func (it *item) fail(r StopReason, cause error) *SendError {
	return &SendError{
		Topic: it.Message.Topic, MessageID: it.Message.ID, Reason: r,
		Attempts: it.history.Attempts, Throttles: it.history.Throttles, MaxAttempts: it.limits.MaxAttempts,
		MaybeStored: it.history.Maybe, Last: it.history.Last, Cause: cause,
	}
}

// ended returns why the ctx has ended, nil before its end. A ctx has ended at its deadline, also if
// its own timer is late.
func (it *item) ended(now time.Time) error {
	if err := it.ctx.Err(); err != nil {
		return endCause(err, context.Cause(it.ctx))
	}
	if deadline, ok := it.ctx.Deadline(); ok && !deadline.After(now) {
		return context.DeadlineExceeded
	}
	return nil
}

// contextEnded returns the error of a send whose ctx ended.
func (it *item) contextEnded() *SendError {
	return it.fail(StopContext, it.ended(time.Now()))
}

// tooLate returns the error of a send whose deadline leaves no time for an attempt.
func (it *item) tooLate(needed, remaining time.Duration, why error) *SendError {
	remaining = max(remaining, 0)
	cause := fmt.Errorf("%w: the next attempt needs %v, and %v are left", context.DeadlineExceeded, needed.Round(time.Millisecond), remaining.Round(time.Millisecond))
	if why != nil {
		cause = fmt.Errorf("%w: %w", cause, why)
	}
	e := it.fail(StopDeadline, cause)
	e.Needed, e.Remaining = needed, remaining
	return e
}

var errProducerClosed = fmt.Errorf("producer %w", tidegate.ErrClosed)

// endCause joins the error and the cause of ctx, so that both match.
func endCause(ctxErr, cause error) error {
	if errors.Is(cause, ctxErr) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctxErr, cause)
}
