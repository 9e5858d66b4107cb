package ledger

import "slices"

// Counts are the numbers of messages by result. Accepted is the sum of the messages without a
// result and of the other counts, except for Drained.
type Counts struct {
	Accepted  int
	Delivered int
	Failed    int
	Spooled   int
	Aborted   int
	Drained   int // messages of the spool that were delivered; they were never accepted
}

// A Result is the end of a message.
type Result int

// The results.
const (
	Delivered Result = iota
	Failed
	Spooled
	Aborted     // because the producer ended
	Drained     // a message of the spool, see Adopt, that was delivered
	LeftInSpool // a message of the spool that was not delivered
)

// Leave notes the results of messages and frees their places. of returns the entry of a message,
// its result, and whether a function is called for it later; it is called with the ledger's lock
// held, so it only reads.
func (l *Ledger[T]) Leave(messages []T, of func(T) (e *Entry[T], r Result, called bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counted := false
	for _, m := range messages {
		e, r, called := of(m)
		e.Place.Leave()
		switch r {
		case Drained:
			l.counts.Drained++
			l.Running.Done()
			continue
		case LeftInSpool:
			l.Running.Done()
			continue
		case Delivered:
			l.counts.Delivered++
		case Spooled:
			l.counts.Spooled++
		case Aborted:
			l.counts.Aborted++
			l.aborted = append(l.aborted, m)
		case Failed:
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
func (l *Ledger[T]) done(e *Entry[T]) {
	b := e.batch
	if b.n--; b.n == 0 && b != l.current {
		close(b.done)
		l.sealed = slices.DeleteFunc(l.sealed, func(s *batch) bool { return s == b })
	}
	l.Running.Done()
}

// calling notes that the function of a message is about to be called.
func (l *Ledger[T]) calling() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backlog--
	l.grant()
}

// called notes that the function of the message has returned.
func (l *Ledger[T]) called(e *Entry[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done(e)
}

// Adopt notes a message of the spool, which counts in no bound; false if the ledger is closed.
func (l *Ledger[T]) Adopt(message T, e *Entry[T]) bool {
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
func (l *Ledger[T]) Hold() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.Running.Add(1)
	return true
}

// Pending returns the messages without a result, those of the spool included.
func (l *Ledger[T]) Pending() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.AppendSeq(make([]T, 0, l.pending.Len()), l.pending.All)
}

// Report returns the counts, and the messages that were aborted.
func (l *Ledger[T]) Report() (c Counts, aborted []T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts, slices.Clone(l.aborted)
}
