package ledger

import (
	"sync"

	"github.com/tidegate/tidegate/producer/internal/plan"
)

// Functions calls the functions of messages one after the other, in the order of the results.
//
// Wake-ups: a goroutine runs while a function waits. Add starts it, and a function that ends it
// starts the next one. Bound on steps: the goroutine looks at the queue once for each function, and
// once at its end.
type Functions[T any] struct {
	ledger *Ledger[T]
	entry  func(T) *Entry[T]
	call   func(T)
	start  func(func()) // starts a goroutine

	mu      sync.Mutex
	queue   plan.List[T] // guarded by mu; linked by Entry.Place, which the ledger no longer uses
	running bool         // guarded by mu
}

// NewFunctions returns the functions of a ledger's messages. entry returns the entry of a message.
// call calls its function, and recovers from its panics.
func NewFunctions[T any](l *Ledger[T], entry func(T) *Entry[T], call func(T)) *Functions[T] {
	return &Functions[T]{ledger: l, entry: entry, call: call, start: l.Running.Go}
}

// Add queues the function of a message. Leave has noted the result before.
func (f *Functions[T]) Add(m T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue.PushBack(&f.entry(m).Place)
	if !f.running {
		f.running = true
		f.start(f.run) // the message counts in Running until called, so no wait for it has ended
	}
}

func (f *Functions[T]) run() {
	for m, ok := f.next(); ok; m, ok = f.next() {
		f.do(m)
	}
}

// next takes the next message from the queue. If there is none, the goroutine ends.
func (f *Functions[T]) next() (m T, ok bool) {
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
func (f *Functions[T]) do(m T) {
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
