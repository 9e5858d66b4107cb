package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/producer/internal/retry"
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

	watched member[*item] // of the watch that ends the item of a SendAsync with its ctx
	unwatch func() bool   // ends the watch that the item left as the last one; nil otherwise

	entry entry[*item] // used by the ledger first, later by the functions
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

// A watchSet has the watches of the messages of a topic, each a T: one watch for each ctx. The lock
// of the topic guards it.
//
// Wake-ups: the end of a ctx ends the messages of its watch. A message that joins a watch later has
// a watch of its own. Bound on steps: a watch sets one function at its ctx, and the last of its
// messages removes that function.
type watchSet[T any] struct {
	lock    sync.Locker
	leave   func([]T) // ends messages, without the lock; some may have left their watch meanwhile
	watches map[<-chan struct{}]*watch[T]

	after func(context.Context, func()) (stop func() bool) // context.AfterFunc
}

// newSet returns a set whose lock is lock. leave is called without the lock, with the messages
// whose ctx has ended. They leave their watches by [member.Leave], which some may have done before.
func newSet[T any](lock sync.Locker, leave func([]T)) watchSet[T] {
	return watchSet[T]{lock: lock, leave: leave, watches: map[<-chan struct{}]*watch[T]{}, after: context.AfterFunc}
}

// Len returns the number of watches. The lock is held.
func (s *watchSet[T]) Len() int { return len(s.watches) }

// A watch ends its messages when its ctx ends.
type watch[T any] struct {
	set     *watchSet[T]
	ctx     context.Context //nolint:containedctx // the callers'; a watch lives as long as its messages
	done    <-chan struct{} // of ctx
	members plan.List[T]
	stop    func() bool // removes the function at ctx; nil until Start has set it
}

// A member is the place of a message in a watch. It is a field of the message, so that it needs no
// allocation.
type member[T any] struct {
	of    *watch[T] // nil if it is in none
	place plan.Link[T]
}

// Join adds a message to the watch of ctx. If it returns a watch, the caller must start it. The
// lock is held.
func (s *watchSet[T]) Join(ctx context.Context, message T, m *member[T]) (begun *watch[T]) {
	done := ctx.Done()
	if done == nil {
		return nil
	}
	w := s.watches[done]
	if w == nil {
		w = &watch[T]{set: s, ctx: ctx, done: done}
		begun, s.watches[done] = w, w
	}
	m.of, m.place.Value = w, message
	w.members.PushBack(&m.place)
	return begun
}

// Start begins to wait for the end of the ctx. No lock is held, because the ctx can be the user's.
func (w *watch[T]) Start() {
	stop := w.set.after(w.ctx, w.end)
	w.set.lock.Lock()
	w.stop = stop
	needed := w.members.Len() > 0
	w.set.lock.Unlock()
	if !needed { // the last message has left before it could return stop
		stop()
	}
}

// end ends the messages of the watch. Later messages with the ctx get another watch.
func (w *watch[T]) end() {
	w.set.lock.Lock()
	w.forget()
	messages := make([]T, 0, w.members.Len())
	for m := range w.members.All {
		messages = append(messages, m)
	}
	w.set.lock.Unlock()
	w.set.leave(messages)
}

// forget removes the watch from its set. The lock is held.
func (w *watch[T]) forget() {
	if w.set.watches[w.done] == w {
		delete(w.set.watches, w.done)
	}
}

// Leave takes the message out of its watch, if it is in one. If Leave returns stop, the caller must
// call it afterwards, without the lock: the message was the last one, and stop removes the function
// at the ctx. The lock is held.
func (m *member[T]) Leave() (stop func() bool) {
	w := m.of
	if w == nil {
		return nil
	}
	m.of = nil
	if m.place.Leave(); w.members.Len() > 0 {
		return nil
	}
	w.forget()
	return w.stop
}
