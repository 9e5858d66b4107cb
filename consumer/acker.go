package consumer

import (
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

const (
	// maxAcks is the largest number of acknowledgements in one request.
	maxAcks = 512

	// ackRequests is how many such requests of one acker are under way at most: one collects
	// while the other is on its way.
	ackRequests = 2
)

// An ackKey names the acknowledgements that share requests.
type ackKey struct{ endpoint, topic string }

// An acker sends the acknowledgements of one server, group and topic. It waits for none
// to come: those that are there when a request begins go with it.
type acker struct {
	run *run

	mu      sync.Mutex
	pending []*item
	sending int // requests under way
}

func (r *run) ackerOf(it *item) *acker {
	key := ackKey{it.current.Endpoint, it.current.Topic}
	if a, ok := r.ackers.Load(key); ok {
		return a.(*acker)
	}
	a, _ := r.ackers.LoadOrStore(key, &acker{run: r})
	return a.(*acker)
}

// add acknowledges a delivery, soon.
func (a *acker) add(it *item) {
	a.mu.Lock()
	a.pending = append(a.pending, it)
	start := a.sending < ackRequests
	if start {
		a.sending++
	}
	a.mu.Unlock()
	if start {
		a.run.effects.Go(a.send)
	}
}

// send sends what is pending, and ends when nothing is.
func (a *acker) send() {
	var batch []*item
	var ds []*tidegate.Delivery
	for {
		clear(batch)
		batch = a.collect(batch[:0])
		if len(batch) == 0 {
			return
		}
		clear(ds)
		ds = ds[:0]
		for _, it := range batch {
			ds = append(ds, &it.current)
		}
		ctx, cancel := a.run.tryContext()
		errs := a.run.transport.Ack(ctx, ds)
		cancel()
		a.run.acked(batch, errs)
	}
}

// collect moves up to maxAcks pending items to batch. If there are none, the sender ends.
func (a *acker) collect(batch []*item) []*item {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(a.pending), maxAcks)
	if n == 0 {
		a.sending--
		return batch
	}
	batch = append(batch, a.pending[:n]...)
	rest := copy(a.pending, a.pending[n:])
	clear(a.pending[rest:])
	a.pending = a.pending[:rest]
	return batch
}

// acked goes on after a request with the acknowledgements of batch, which it may change.
func (r *run) acked(batch []*item, errs []error) {
	if len(errs) != len(batch) {
		errs = make([]error, len(batch))
		for i, it := range batch {
			errs[i] = &tidegate.Error{Op: "AckMessage", Subject: it.current.ID, Message: "the transport did not return one result for each delivery"}
		}
	}
	done := batch[:0]
	for i, it := range batch {
		if errs[i] != nil {
			r.told(it, transport.RetryResult{}, errs[i])
			continue
		}
		it.settlement.conclude(transport.RetryResult{}, nil)
		r.observe(it)
		done = append(done, it)
	}
	if len(done) > 0 {
		r.follow(r.hand.finish(time.Now(), done...))
	}
}
