// Package batch collects items and sends those that are there together.
package batch

import "sync"

// A Batcher sends items in requests. It does not wait for further items: those that are there when
// a request begins go with it. Create one with [New].
type Batcher[T any] struct {
	items    int
	requests int
	start    func(func())
	send     func([]T)

	mu      sync.Mutex
	pending []T
	sending int // requests under way
}

// New returns a batcher of at most so many items in a request and so many requests under way. Its
// goroutines begin by start. send makes one request; it may change the slice, which is valid until
// it returns.
func New[T any](items, requests int, start func(func()), send func([]T)) *Batcher[T] {
	return &Batcher[T]{items: items, requests: requests, start: start, send: send}
}

// Add sends an item, soon.
func (b *Batcher[T]) Add(x T) {
	b.mu.Lock()
	b.pending = append(b.pending, x)
	start := b.sending < b.requests
	if start {
		b.sending++
	}
	b.mu.Unlock()
	if start {
		b.start(b.run)
	}
}

// run sends the pending items, and ends when there are none.
func (b *Batcher[T]) run() {
	var list []T
	for {
		clear(list)
		if list = b.collect(list[:0]); len(list) == 0 {
			return
		}
		b.send(list)
	}
}

// collect moves the items of one request to list. If there are none, the sender ends.
func (b *Batcher[T]) collect(list []T) []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.pending), b.items)
	if n == 0 {
		b.sending--
		return list
	}
	list = append(list, b.pending[:n]...)
	rest := copy(b.pending, b.pending[n:])
	clear(b.pending[rest:])
	b.pending = b.pending[:rest]
	return list
}
