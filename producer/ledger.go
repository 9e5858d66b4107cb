package producer

// This file bounds and counts the messages that a producer accepted and that have no result yet. A
// full ledger lets further messages wait for a place, in their order, or rejects them, or admits
// them on their way to the spool.

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tidegate/tidegate/producer/internal/plan"
)

// A ledger has the messages of one producer, each a T. Goroutines may share it. Its lock is never
// held while another is acquired.
//
// Wake-ups: a message that waits for a place is admitted by the Leave of an earlier message, by the
// call of a function, or by the end of the ctx of the message before it. Close rejects all that
// wait. The end of the last message of a batch, which is its Leave or the return of its function,
// wakes each Flush that waits for the batch. The last EndCall wakes AwaitCalls, and the last Leave
// after Close closes Settled. Bound on steps: each event looks at the messages that it admits, and
// at two more.
type ledger[T any] struct {
	maxMessages, maxBytes int

	mu       sync.Mutex
	messages int                    // guarded by mu, as all below: without a result
	bytes    int                    // of them
	backlog  int                    // messages with a result, before the call of their function
	queue    plan.List[*entrant[T]] // wait for a place
	spooling plan.List[*entrant[T]] // those of them that may be admitted on their way to the spool
	pending  plan.List[T]           // without a result
	closed   bool                   // no further message is accepted
	settled  chan struct{}          // closed when all messages have a result, after Close
	stopped  bool                   // no request of a call begins any more
	calls    int                    // outside the queue
	returned chan struct{}          // closed when calls becomes 0; nil if nothing waits for that
	counts   ledgerCounts
	aborted  []T      // of ledgerCounts.Aborted
	current  *batch   // of messages to flush
	sealed   []*batch // that a Flush waits for
	looks    int      // at entrants; the model bounds them

	// Running counts the unfinished messages and the producer's goroutines.
	Running sync.WaitGroup
}

// newLedger returns a ledger. maxMessages and maxBytes bound the messages without a result.
func newLedger[T any](maxMessages, maxBytes int) *ledger[T] {
	return &ledger[T]{maxMessages: maxMessages, maxBytes: maxBytes}
}

// An entry is the ledger's record of a message. It is a field of the message, so that the record
// needs no allocation.
type entry[T any] struct {
	// Place is in the ledger's list until Leave. From then on it is free for other uses.
	Place plan.Link[T]

	batch *batch
	bytes int
}

// Admit accepts a message also if the ledger is full. It returns false if the ledger is closed.
func (l *ledger[T]) Admit(message T, e *entry[T], bytes int) bool {
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
	place   plan.Link[*entrant[T]] // in Ledger.queue
	spools  plan.Link[*entrant[T]] // in Ledger.spooling
	entry   *entry[T]
	granted chan struct{}

	admission admission // guarded by mu until granted is closed
}

// A batch is the messages that were accepted between two calls of Flush.
type batch struct {
	n    int // guarded by the ledger's mu: not done yet
	done chan struct{}
}

// whenFull selects the action for a message if the ledger is full.
type whenFull int

// The choices.
const (
	fullWait   whenFull = iota // it waits for a place
	fullReject                 // it is rejected
	fullSpool                  // it is admitted for the spool; it waits while too many functions are to be called
)

// An admission is the result of Enter or Await.
type admission int

// The results.
const (
	placeAdmitted admission = iota
	placeForced             // admitted, and it has to go to the spool without an attempt
	placeClosed             // not admitted: the ledger is closed
	placeFull               // not admitted: there is no place
	placeEnded              // not admitted: ctx ended
)

// Enter accepts a message with entry e and a size in bytes. A message larger than the bound of the
// ledger counts as that bound. If the ledger is full, when decides. If Enter returns an entrant,
// the message waits for a place, and Await must follow. The error explains Full.
func (l *ledger[T]) Enter(ctx context.Context, message T, e *entry[T], bytes int, when whenFull) (*entrant[T], admission, error) {
	e.Place.Value = message
	e.bytes = min(bytes, l.maxBytes) // a larger message travels alone
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, placeClosed, nil
	case l.queue.Len() == 0 && l.fits(e):
		l.admit(e)
		return nil, placeAdmitted, nil
	case when == fullReject:
		return nil, placeFull, l.full()
	case when == fullSpool && l.backlog < l.maxMessages:
		l.admit(e)
		return nil, placeForced, nil
	case ctx.Err() != nil:
		return nil, placeEnded, nil
	}
	w := &entrant[T]{entry: e, granted: make(chan struct{})}
	w.place.Value, w.spools.Value = w, w
	l.queue.PushBack(&w.place)
	if when == fullSpool {
		l.spooling.PushBack(&w.spools)
	}
	return w, placeAdmitted, nil
}

// Await waits until the message of an entrant has a place, the ledger is closed, or ctx ends.
func (l *ledger[T]) Await(ctx context.Context, w *entrant[T]) admission {
	select {
	case <-w.granted:
	case <-ctx.Done():
		l.stopWaiting(w)
	}
	return w.admission
}

// stopWaiting notes the end of the ctx of an entrant. Its message may have been admitted meanwhile,
// and may even have its result already.
func (l *ledger[T]) stopWaiting(w *entrant[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.granted:
	default:
		w.let(placeEnded)
		l.grant() // the next one may be smaller
	}
}

// fits and the functions below are called with mu held.
func (l *ledger[T]) fits(e *entry[T]) bool {
	return l.messages < l.maxMessages && l.backlog < l.maxMessages && l.bytes+e.bytes <= l.maxBytes
}

func (l *ledger[T]) full() error {
	return fmt.Errorf(
		"%d of %d messages (MaxPending) and %d of %d bytes (MaxPendingBytes) wait for their result, and %d more messages for the end of their function; wait until some have ended",
		l.messages, l.maxMessages, l.bytes, l.maxBytes, l.backlog)
}

func (l *ledger[T]) admit(e *entry[T]) {
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
func (l *ledger[T]) grant() {
	for w := l.head(&l.queue); w != nil && l.fits(w.entry); w = l.head(&l.queue) {
		l.admit(w.entry)
		w.let(placeAdmitted)
	}
	for w := l.head(&l.spooling); w != nil && l.backlog < l.maxMessages; w = l.head(&l.spooling) {
		l.admit(w.entry)
		w.let(placeForced)
	}
}

func (l *ledger[T]) head(of *plan.List[*entrant[T]]) *entrant[T] {
	l.looks++
	return of.First()
}

// let ends the wait of an entrant.
func (w *entrant[T]) let(a admission) {
	w.place.Leave()
	w.spools.Leave()
	w.admission = a
	close(w.granted)
}

// Flush waits until all messages accepted so far are done, or returns the cause of ctx.
func (l *ledger[T]) Flush(ctx context.Context) error {
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
func (l *ledger[T]) seal() []*batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil && l.current.n > 0 {
		l.sealed = append(l.sealed, l.current)
		l.current = nil
	}
	return slices.Clone(l.sealed)
}

// Close makes the ledger reject all further messages, including those that wait for a place.
func (l *ledger[T]) Close() {
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
		w.let(placeClosed)
	}
}

// Settled returns a channel that is closed once all messages have a result. Close comes first.
func (l *ledger[T]) Settled() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled
}

// ledgerCounts are the numbers of messages by result. Accepted is the sum of the messages without a
// result and of the other counts, except for Drained.
type ledgerCounts struct {
	Accepted  int
	Delivered int
	Failed    int
	Spooled   int
	Aborted   int
	Drained   int // messages of the spool that were delivered; they were never accepted
}

// A leaveResult is the end of a message.
type leaveResult int

// The results.
const (
	leftDelivered leaveResult = iota
	leftFailed
	leftSpooled
	leftAborted // because the producer ended
	leftDrained // a message of the spool, see Adopt, that was delivered
	leftInSpool // a message of the spool that was not delivered
)

// Leave notes the results of messages and frees their places. of returns the entry of a message,
// its result, and whether a function is called for it later; it is called with the ledger's lock
// held, so it only reads.
func (l *ledger[T]) Leave(messages []T, of func(T) (e *entry[T], r leaveResult, called bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counted := false
	for _, m := range messages {
		e, r, called := of(m)
		e.Place.Leave()
		switch r {
		case leftDrained:
			l.counts.Drained++
			l.Running.Done()
			continue
		case leftInSpool:
			l.Running.Done()
			continue
		case leftDelivered:
			l.counts.Delivered++
		case leftSpooled:
			l.counts.Spooled++
		case leftAborted:
			l.counts.Aborted++
			l.aborted = append(l.aborted, m)
		case leftFailed:
			l.counts.Failed++
		}
		counted = true
		l.messages--
		l.bytes -= e.bytes
		if called {
			l.backlog++
		} else {
			l.done(e)
		}
	}
	if l.closed && l.messages == 0 && counted {
		close(l.settled)
	}
	l.grant()
}

// done marks a message as finished. mu is held.
func (l *ledger[T]) done(e *entry[T]) {
	b := e.batch
	if b.n--; b.n == 0 && b != l.current {
		close(b.done)
		l.sealed = slices.DeleteFunc(l.sealed, func(s *batch) bool { return s == b })
	}
	l.Running.Done()
}

// calling notes that the function of a message is about to be called.
func (l *ledger[T]) calling() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backlog--
	l.grant()
}

// called notes that the function of the message has returned.
func (l *ledger[T]) called(e *entry[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done(e)
}

// Adopt notes a message of the spool, which counts in no bound; false if the ledger is closed.
func (l *ledger[T]) Adopt(message T, e *entry[T]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	e.Place.Value = message
	l.pending.PushBack(&e.Place)
	l.Running.Add(1)
	return true
}

// Hold adds a task to Running; false if the ledger is closed.
func (l *ledger[T]) Hold() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.Running.Add(1)
	return true
}

// Pending returns the messages without a result, those of the spool included.
func (l *ledger[T]) Pending() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.AppendSeq(make([]T, 0, l.pending.Len()), l.pending.All)
}

// Report returns the counts, and the messages that were aborted.
func (l *ledger[T]) Report() (c ledgerCounts, aborted []T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts, slices.Clone(l.aborted)
}

// BeginCall notes a call outside the queue, such as a transaction. It returns false if the ledger
// is closed; otherwise EndCall must follow.
func (l *ledger[T]) BeginCall() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.calls++
	return true
}

// EndCall notes the end of a call.
func (l *ledger[T]) EndCall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls--; l.calls == 0 && l.returned != nil {
		close(l.returned)
		l.returned = nil
	}
}

// AwaitCalls waits until no call is under way, or returns the cause of ctx. Close comes first.
func (l *ledger[T]) AwaitCalls(ctx context.Context) error {
	select {
	case <-l.allReturned():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// allReturned returns a channel that is closed once no call is under way.
func (l *ledger[T]) allReturned() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	returned := l.returned
	if returned == nil {
		returned = make(chan struct{})
		if l.calls == 0 {
			close(returned)
		} else {
			l.returned = returned
		}
	}
	return returned
}

// HoldCall adds a request of a call to Running. It returns false after Stop.
func (l *ledger[T]) HoldCall() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.Running.Add(1)
	return true
}

// Stop makes HoldCall return false. From then on nothing but messages without a result adds to
// Running, so that it can be waited for. Close comes first.
func (l *ledger[T]) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
}

// functions calls the functions of messages one after the other, in the order of the results.
//
// Wake-ups: a goroutine runs while a function waits. Add starts it, and a function that ends it
// starts the next one. Bound on steps: the goroutine looks at the queue once for each function, and
// once at its end.
type functions[T any] struct {
	ledger *ledger[T]
	entry  func(T) *entry[T]
	call   func(T)
	start  func(func()) // starts a goroutine

	mu      sync.Mutex
	queue   plan.List[T] // guarded by mu; linked by Entry.Place, which the ledger no longer uses
	running bool         // guarded by mu
}

// newFunctions returns the functions of a ledger's messages. entry returns the entry of a message.
// call calls its function, and recovers from its panics.
func newFunctions[T any](l *ledger[T], entry func(T) *entry[T], call func(T)) *functions[T] {
	return &functions[T]{ledger: l, entry: entry, call: call, start: l.Running.Go}
}

// Add queues the function of a message. Leave has noted the result before.
func (f *functions[T]) Add(m T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue.PushBack(&f.entry(m).Place)
	if !f.running {
		f.running = true
		f.start(f.run) // the message counts in Running until called, so no wait for it has ended
	}
}

func (f *functions[T]) run() {
	for m, ok := f.next(); ok; m, ok = f.next() {
		f.do(m)
	}
}

// next takes the next message from the queue. If there is none, the goroutine ends.
func (f *functions[T]) next() (m T, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, f.running = f.queue.First(), f.queue.Len() > 0
	if f.running {
		f.entry(m).Place.Leave()
	}
	return m, f.running
}

// do calls the function of a message. If the function ends the goroutine, as FailNow of package
// testing does, another goroutine calls the later ones.
func (f *functions[T]) do(m T) {
	f.ledger.calling()
	returned := false
	defer func() {
		f.ledger.called(f.entry(m))
		if !returned {
			f.start(f.run)
		}
	}()
	f.call(m)
	returned = true
}
