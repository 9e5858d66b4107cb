package consumer

import (
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/batch"
	"github.com/tidegate/tidegate/transport"
)

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
		b, _ = r.ackers.LoadOrStore(key, batch.New(maxAcks, ackRequests, r.effects.Go, r.sendAcks))
	}
	b.(*batch.Batcher[*item]).Add(it)
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
