// Package ledger bounds and counts the messages that a producer accepted and that have no result
// yet. A full ledger lets further messages wait for a place, in their order, or refuses them, or
// admits them on their way to the spool.
package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tidegate/tidegate/producer/internal/list"
)

// A Ledger has the messages of one producer, each a T. Goroutines may share it. Its lock is never
// held while another is acquired.
//
// Who wakes what waits: a message that waits for a place is admitted by the Leave of an earlier
// message, by the call of a function, or by the end of the ctx of the message before it. Close
// rejects all that wait. Flush waits for the messages before it, and AwaitCalls for EndCall.
// What bounds the steps: each event admits the messages that fit, and looks at one more.
type Ledger[T any] struct {
	maxMessages, maxBytes int

	mu       sync.Mutex
	messages int                    // guarded by mu, as all below: without a result
	bytes    int                    // of them
	backlog  int                    // messages with a result, before the call of their function
	queue    list.List[*entrant[T]] // wait for a place
	spooling list.List[*entrant[T]] // those of them that may be admitted on their way to the spool
	pending  list.List[T]           // without a result
	closed   bool                   // no further message is accepted
	settled  chan struct{}          // closed when all messages have a result, after Close
	stopped  bool                   // no request of a call begins any more
	calls    int                    // outside the queue
	returned chan struct{}          // closed when calls becomes 0; nil if nothing waits for that
	counts   Counts
	aborted  []T      // of Counts.Aborted
	current  *batch   // of messages to flush
	sealed   []*batch // that a Flush waits for

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
	Place list.Link[T]

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

// An entrant waits for a place.
type entrant[T any] struct {
	place   list.Link[*entrant[T]] // in Ledger.queue
	spools  list.Link[*entrant[T]] // in Ledger.spooling
	entry   *Entry[T]
	granted chan struct{}
	forced  bool // guarded by mu until granted is closed, as is closed: it moves to the spool
	closed  bool
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

// An Admission is the result of Enter.
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
// ledger counts as that bound. If the ledger is full, when decides. If blocked is not nil, Enter
// calls it before a wait, without a lock. The error explains Full.
func (l *Ledger[T]) Enter(ctx context.Context, message T, e *Entry[T], bytes int, when WhenFull, blocked func()) (Admission, error) {
	e.Place.Value = message
	e.bytes = min(bytes, l.maxBytes) // a larger message travels alone
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return Closed, nil
	}
	if l.queue.Len() == 0 && l.fits(e) {
		l.admit(e)
		l.mu.Unlock()
		return Admitted, nil
	}
	switch {
	case when == Reject:
		err := l.full()
		l.mu.Unlock()
		return Full, err
	case when == Spool && l.backlog < l.maxMessages:
		l.admit(e)
		l.mu.Unlock()
		return Forced, nil
	}
	w := &entrant[T]{entry: e, granted: make(chan struct{})}
	w.place.Value, w.spools.Value = w, w
	if ctx.Err() == nil {
		l.queue.PushBack(&w.place)
		if when == Spool {
			l.spooling.PushBack(&w.spools)
		}
	}
	l.mu.Unlock()
	if blocked != nil {
		blocked()
	}
	select {
	case <-w.granted:
	case <-ctx.Done():
		l.mu.Lock()
		granted := false
		select {
		case <-w.granted: // meanwhile; the message may even have its result already
			granted = true
		default:
			w.leave()
			l.grant() // the next one may be smaller
		}
		l.mu.Unlock()
		if !granted {
			return Ended, nil
		}
	}
	switch {
	case w.closed:
		return Closed, nil
	case w.forced:
		return Forced, nil
	}
	return Admitted, nil
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

// grant admits the entrants that no longer have to wait. Its steps are one more than the entrants
// that it admits, however many wait.
func (l *Ledger[T]) grant() {
	for l.queue.Len() > 0 && l.fits(l.queue.First().entry) {
		l.let(l.queue.First())
	}
	for l.spooling.Len() > 0 && l.backlog < l.maxMessages {
		w := l.spooling.First()
		w.forced = true
		l.let(w)
	}
}

// let admits an entrant.
func (l *Ledger[T]) let(w *entrant[T]) {
	w.leave()
	l.admit(w.entry)
	close(w.granted)
}

func (w *entrant[T]) leave() {
	w.place.Leave()
	w.spools.Leave()
}

// Flush waits until all messages accepted so far are done, or returns the cause of ctx.
func (l *Ledger[T]) Flush(ctx context.Context) error {
	l.mu.Lock()
	if l.current != nil && l.current.n > 0 {
		l.sealed = append(l.sealed, l.current)
		l.current = nil
	}
	open := slices.Clone(l.sealed)
	l.mu.Unlock()
	for _, b := range open {
		select {
		case <-b.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
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
		w.leave()
		w.closed = true
		close(w.granted)
	}
}

// Settled returns a channel that is closed once all messages have a result. Close comes first.
func (l *Ledger[T]) Settled() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled
}
