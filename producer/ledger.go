package producer

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/list"
)

// A ledger bounds and counts the messages that the producer accepted. Its lock
// is never held while another is acquired.
type ledger struct {
	maxMessages, maxBytes int

	mu       sync.Mutex
	messages int                 // guarded by mu, as all below: without a result
	bytes    int                 // of them
	backlog  int                 // messages whose function was not called yet, after their result
	queue    list.List[*entrant] // wait for a place
	items    list.List[*item]    // without a result
	closed   bool                // no further message is accepted
	settled  chan struct{}       // closed when all messages have a result, after close
	accounts Accounts
	current  *batch   // of messages to flush
	sealed   []*batch // that a Flush waits for

	running sync.WaitGroup // messages until all is done, and goroutines
}

// held is what the ledger notes in an item.
type held struct {
	place list.Link[*item] // in ledger.items
	batch *batch
	bytes int
}

// An entrant waits for a place.
type entrant struct {
	place   list.Link[*entrant]
	it      *item
	spools  bool // it may be admitted on its way to the spool
	granted chan struct{}
	forced  bool // guarded by ledger.mu until granted is closed, as is err: it moves to the spool
	err     error
}

// A batch is the messages that were accepted between two calls of Flush.
type batch struct {
	n    int // guarded by ledger.mu: not done yet
	done chan struct{}
}

// enter accepts the message. A full producer lets it wait for a place, until its
// ctx ends, refuses it, or has it moved to the spool. The callback blocked, if it is
// not nil, is called before a wait.
func (l *ledger) enter(it *item, policy FullPolicy, blocked func()) *SendError {
	it.held.place.Value = it
	it.held.bytes = min(it.Size, l.maxBytes) // a larger message travels alone
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return it.fail(StopClosed, errProducerClosed)
	}
	if l.queue.Len() == 0 && l.fits(it) {
		l.admit(it)
		l.mu.Unlock()
		return nil
	}
	switch {
	case policy == RejectWhenFull:
		err := l.full()
		l.mu.Unlock()
		return it.fail(StopFull, err)
	case policy == SpoolWhenFull && it.Message.MessageGroup == "" && l.backlog < l.maxMessages:
		l.admit(it)
		l.mu.Unlock()
		it.force()
		return nil
	}
	e := &entrant{it: it, spools: policy == SpoolWhenFull && it.Message.MessageGroup == "", granted: make(chan struct{})}
	e.place.Value = e
	if it.ctx.Err() == nil {
		l.queue.PushBack(&e.place)
	}
	l.mu.Unlock()
	if blocked != nil {
		blocked()
	}
	select {
	case <-e.granted:
	case <-it.ctx.Done():
		l.mu.Lock()
		granted := !e.place.Joined() && (e.err != nil || it.held.place.Joined())
		e.place.Leave()
		if !granted {
			l.grant() // the next one may be smaller
		}
		l.mu.Unlock()
		if !granted {
			return it.contextEnded()
		}
	}
	if e.err != nil {
		return it.fail(StopClosed, e.err)
	}
	if e.forced {
		it.force()
	}
	return nil
}

// force has the message move to the spool without an attempt.
func (it *item) force() { it.forced, it.wake = true, make(chan struct{}) }

// fits and the functions below are called with mu held.
func (l *ledger) fits(it *item) bool {
	return l.messages < l.maxMessages && l.backlog < l.maxMessages && l.bytes+it.held.bytes <= l.maxBytes
}

func (l *ledger) full() error {
	return &tidegate.Error{Subject: "producer", Message: fmt.Sprintf(
		"it is full: %d messages of at most %d (MaxPending) and %d bytes of at most %d (MaxPendingBytes) wait for their result, and %d for the end of their function; wait until some are done",
		l.messages, l.maxMessages, l.bytes, l.maxBytes, l.backlog)}
}

func (l *ledger) admit(it *item) {
	l.messages++
	l.bytes += it.held.bytes
	l.items.PushBack(&it.held.place)
	l.accounts.Accepted++
	if l.current == nil {
		l.current = &batch{done: make(chan struct{})}
	}
	it.held.batch = l.current
	it.held.batch.n++
	l.running.Add(1)
}

func (l *ledger) grant() {
	for l.queue.Len() > 0 && l.fits(l.queue.First().it) {
		e := l.queue.First()
		e.place.Leave()
		l.admit(e.it)
		close(e.granted)
	}
	for e := range l.queue.All {
		if l.backlog >= l.maxMessages {
			return
		}
		if e.spools {
			e.place.Leave()
			l.admit(e.it)
			e.forced = true
			close(e.granted)
		}
	}
}

// leave notes the results of messages and frees their places.
func (l *ledger) leave(items []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counted := false
	for _, it := range items {
		it.held.place.Leave()
		if it.drained {
			if it.err == nil {
				l.accounts.Drained++
			}
			l.running.Done()
			continue
		}
		counted = true
		l.messages--
		l.bytes -= it.held.bytes
		switch {
		case it.err == nil && it.receipt.Spooled:
			l.accounts.Spooled++
		case it.err == nil:
			l.accounts.Delivered++
		case it.aborted:
			l.accounts.Undelivered = append(l.accounts.Undelivered, Undelivered{Message: it.Message, MaybeStored: it.err.MaybeStored})
		default:
			l.accounts.Failed++
		}
		if it.done != nil {
			l.backlog++
		} else {
			l.finish(it)
		}
	}
	if l.closed && l.messages == 0 && counted {
		close(l.settled)
	}
	l.grant()
}

// finish notes that nothing is left to do for the message. mu is held.
func (l *ledger) finish(it *item) {
	b := it.held.batch
	if b.n--; b.n == 0 && b != l.current {
		close(b.done)
		l.sealed = slices.DeleteFunc(l.sealed, func(s *batch) bool { return s == b })
	}
	l.running.Done()
}

// calling notes that the function of the message is about to be called, called
// that it has returned.
func (l *ledger) calling() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backlog--
	l.grant()
}

func (l *ledger) called(it *item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish(it)
}

// close ends accepting.
func (l *ledger) close() {
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
	for e := range l.queue.All {
		e.place.Leave()
		e.err = errProducerClosed
		close(e.granted)
	}
}

// adopt notes a message of the spool, which counts in no bound; false if the
// producer is closed.
func (l *ledger) adopt(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	it.held.place.Value = it
	l.items.PushBack(&it.held.place)
	l.running.Add(1)
	return true
}

// hold begins a task of the producer that Close waits for; false if it is closed.
func (l *ledger) hold() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.running.Add(1)
	return true
}

// flush waits until all messages accepted so far are done.
func (l *ledger) flush(ctx context.Context) error {
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

// pending returns the messages without a result.
func (l *ledger) pending() []*item {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.AppendSeq(make([]*item, 0, l.items.Len()), l.items.All)
}

// report returns a copy of the accounts.
func (l *ledger) report() Accounts {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts
	a.Undelivered = slices.Clone(a.Undelivered)
	return a
}
