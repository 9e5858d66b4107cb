// Package ledger bounds and counts the messages that a producer accepted and that have no result
// yet. A full ledger lets further messages wait for a place, in their order, or rejects them, or
// admits them on their way to the spool.
package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tidegate/tidegate/producer/internal/plan"
)

// A Ledger has the messages of one producer, each a T. Goroutines may share it. Its lock is never
// held while another is acquired.
//
// Wake-ups: a message that waits for a place is admitted by the Leave of an earlier message, by the
// call of a function, or by the end of the ctx of the message before it. Close rejects all that
// wait. The end of the last message of a batch, which is its Leave or the return of its function,
// wakes each Flush that waits for the batch. The last EndCall wakes AwaitCalls, and the last Leave
// after Close closes Settled. Bound on steps: each event looks at the messages that it admits, and
// at two more.
type Ledger[T any] struct {
	maxMessages, maxBytes int

	mu       sync.Mutex
	messages int                    // guarded by mu, as all below: without a result
	bytes    int                    // of them
	backlog  int                    // messages with a result, before the call of their function
	queue    plan.List[*Entrant[T]] // wait for a place
	spooling plan.List[*Entrant[T]] // those of them that may be admitted on their way to the spool
	pending  plan.List[T]           // without a result
	closed   bool                   // no further message is accepted
	settled  chan struct{}          // closed when all messages have a result, after Close
	stopped  bool                   // no request of a call begins any more
	calls    int                    // outside the queue
	returned chan struct{}          // closed when calls becomes 0; nil if nothing waits for that
	counts   Counts
	aborted  []T      // of Counts.Aborted
	current  *batch   // of messages to flush
	sealed   []*batch // that a Flush waits for
	looks    int      // at entrants; the model bounds them

	// Running counts the unfinished messages and the producer's goroutines.
	Running sync.WaitGroup
}

// New returns a ledger. maxMessages and maxBytes bound the messages without a result.
func New[T any](maxMessages, maxBytes int) *Ledger[T] {
	return &Ledger[T]{maxMessages: maxMessages, maxBytes: maxBytes}
}

// An Entry is the ledger's record of a message. It is a field of the message, so that the record
// needs no allocation.
type Entry[T any] struct {
	// Place is in the ledger's list until Leave. From then on it is free for other uses.
	Place plan.Link[T]

	batch *batch
	bytes int
}

// Admit accepts a message also if the ledger is full. It returns false if the ledger is closed.
func (l *Ledger[T]) Admit(message T, e *Entry[T], bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	e.Place.Value = message
	e.bytes = min(bytes, l.maxBytes)
	l.admit(e)
	return true
}

// An Entrant waits for a place.
type Entrant[T any] struct {
	place   plan.Link[*Entrant[T]] // in Ledger.queue
	spools  plan.Link[*Entrant[T]] // in Ledger.spooling
	entry   *Entry[T]
	granted chan struct{}

	admission Admission // guarded by mu until granted is closed
}

// A batch is the messages that were accepted between two calls of Flush.
type batch struct {
	n    int // guarded by the ledger's mu: not done yet
	done chan struct{}
}

// WhenFull selects the action for a message if the ledger is full.
type WhenFull int

// The choices.
const (
	Wait   WhenFull = iota // it waits for a place
	Reject                 // it is rejected
	Spool                  // it is admitted for the spool; it waits while too many functions are to be called
)

// An Admission is the result of Enter or Await.
type Admission int

// The results.
const (
	Admitted Admission = iota
	Forced             // admitted, and it has to go to the spool without an attempt
	Closed             // not admitted: the ledger is closed
	Full               // not admitted: there is no place
	Ended              // not admitted: ctx ended
)

// Enter accepts a message with entry e and a size in bytes. A message larger than the bound of the
// ledger counts as that bound. If the ledger is full, when decides. If Enter returns an entrant,
// the message waits for a place, and Await must follow. The error explains Full.
func (l *Ledger[T]) Enter(ctx context.Context, message T, e *Entry[T], bytes int, when WhenFull) (*Entrant[T], Admission, error) {
	e.Place.Value = message
	e.bytes = min(bytes, l.maxBytes) // a larger message travels alone
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, Closed, nil
	case l.queue.Len() == 0 && l.fits(e):
		l.admit(e)
		return nil, Admitted, nil
	case when == Reject:
		return nil, Full, l.full()
	case when == Spool && l.backlog < l.maxMessages:
		l.admit(e)
		return nil, Forced, nil
	case ctx.Err() != nil:
		return nil, Ended, nil
	}
	w := &Entrant[T]{entry: e, granted: make(chan struct{})}
	w.place.Value, w.spools.Value = w, w
	l.queue.PushBack(&w.place)
	if when == Spool {
		l.spooling.PushBack(&w.spools)
	}
	return w, Admitted, nil
}

// Await waits until the message of an entrant has a place, the ledger is closed, or ctx ends.
func (l *Ledger[T]) Await(ctx context.Context, w *Entrant[T]) Admission {
	select {
	case <-w.granted:
	case <-ctx.Done():
		l.stopWaiting(w)
	}
	return w.admission
}

// stopWaiting notes the end of the ctx of an entrant. Its message may have been admitted meanwhile,
// and may even have its result already.
func (l *Ledger[T]) stopWaiting(w *Entrant[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.granted:
	default:
		w.let(Ended)
		l.grant() // the next one may be smaller
	}
}

// fits and the functions below are called with mu held.
func (l *Ledger[T]) fits(e *Entry[T]) bool {
	return l.messages < l.maxMessages && l.backlog < l.maxMessages && l.bytes+e.bytes <= l.maxBytes
}

func (l *Ledger[T]) full() error {
	return fmt.Errorf(
		"%d of %d messages (MaxPending) and %d of %d bytes (MaxPendingBytes) wait for their result, and %d more messages for the end of their function; wait until some have ended",
		l.messages, l.maxMessages, l.bytes, l.maxBytes, l.backlog)
}

func (l *Ledger[T]) admit(e *Entry[T]) {
	l.messages++
	l.bytes += e.bytes
	l.pending.PushBack(&e.Place)
	l.counts.Accepted++
	if l.current == nil {
		l.current = &batch{done: make(chan struct{})}
	}
	e.batch = l.current
	e.batch.n++
	l.Running.Add(1)
}

// grant admits the entrants that no longer have to wait. It looks at two more than it admits,
// however many wait.
func (l *Ledger[T]) grant() {
	for w := l.head(&l.queue); w != nil && l.fits(w.entry); w = l.head(&l.queue) {
		l.admit(w.entry)
		w.let(Admitted)
	}
	for w := l.head(&l.spooling); w != nil && l.backlog < l.maxMessages; w = l.head(&l.spooling) {
		l.admit(w.entry)
		w.let(Forced)
	}
}

func (l *Ledger[T]) head(of *plan.List[*Entrant[T]]) *Entrant[T] {
	l.looks++
	return of.First()
}

// let ends the wait of an entrant.
func (w *Entrant[T]) let(a Admission) {
	w.place.Leave()
	w.spools.Leave()
	w.admission = a
	close(w.granted)
}

// Flush waits until all messages accepted so far are done, or returns the cause of ctx.
func (l *Ledger[T]) Flush(ctx context.Context) error {
	for _, b := range l.seal() {
		select {
		case <-b.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// seal returns the batches of the messages that are not done. Later messages are in other batches.
func (l *Ledger[T]) seal() []*batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil && l.current.n > 0 {
		l.sealed = append(l.sealed, l.current)
		l.current = nil
	}
	return slices.Clone(l.sealed)
}

// Close makes the ledger reject all further messages, including those that wait for a place.
func (l *Ledger[T]) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	l.settled = make(chan struct{})
	if l.messages == 0 {
		close(l.settled)
	}
	for w := range l.queue.All {
		w.let(Closed)
	}
}

// Settled returns a channel that is closed once all messages have a result. Close comes first.
func (l *Ledger[T]) Settled() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled
}
