package consumer

import (
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A batcher sends items in requests. It does not wait for further items: those that are there when
// a request begins go with it. Create one with [newBatch].
type batcher[T any] struct {
	items    int
	requests int
	start    func(func())
	send     func([]T)

	mu      sync.Mutex
	pending []T
	sending int // requests under way
}

// newBatch returns a batcher of at most so many items in a request and so many requests under way.
// Its goroutines begin by start. send makes one request; it may change the slice, which is valid
// until it returns.
func newBatch[T any](items, requests int, start func(func()), send func([]T)) *batcher[T] {
	return &batcher[T]{items: items, requests: requests, start: start, send: send}
}

// Add sends an item, soon.
func (b *batcher[T]) Add(x T) {
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
func (b *batcher[T]) run() {
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
func (b *batcher[T]) collect(list []T) []T {
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

const (
	// maxAcks is the largest number of acknowledgements in one request.
	maxAcks = 512

	// ackRequests is the largest number of concurrent acknowledgement requests for a server and
	// topic: one collects messages while the other is under way.
	ackRequests = 2
)

// An ackKey names the acknowledgements that share requests.
type ackKey struct{ endpoint, topic string }

// acknowledge acknowledges a delivery in one of the next requests.
func (r *run) acknowledge(it *item) {
	key := ackKey{it.current.Endpoint, it.current.Topic}
	b, ok := r.ackers.Load(key)
	if !ok {
		b, _ = r.ackers.LoadOrStore(key, newBatch(maxAcks, ackRequests, r.effects.Go, r.sendAcks))
	}
	b.(*batcher[*item]).Add(it)
}

func (r *run) sendAcks(list []*item) {
	ds := make([]*tidegate.Delivery, len(list))
	var grace time.Time
	for i, it := range list {
		ds[i] = &it.current
		if it.grace.After(grace) {
			grace = it.grace
		}
	}
	ctx, cancel := r.tryContext(grace)
	errs := r.transport.Ack(ctx, ds)
	cancel()
	r.acked(list, errs)
}

// acked handles the response to the acknowledgements of batch. It may change batch.
func (r *run) acked(batch []*item, errs []error) {
	if len(errs) != len(batch) {
		errs = make([]error, len(batch))
		for i, it := range batch {
			errs[i] = &tidegate.Error{Op: "AckMessage", Subject: it.current.ID, Message: "the transport returned a different number of results than deliveries"}
		}
	}
	done := batch[:0]
	for i, it := range batch {
		if errs[i] != nil {
			r.attempted(it, transport.RetryResult{}, errs[i])
			continue
		}
		it.conclude(transport.RetryResult{}, nil)
		r.observe(it)
		done = append(done, it)
	}
	if len(done) > 0 {
		r.follow(r.hand.removeSettled(time.Now(), done...))
	}
}
