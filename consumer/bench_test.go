package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// free is a transport that costs nothing: its deliveries are there from the beginning.
type free struct {
	ring                        []*tidegate.Delivery
	next, left                  atomic.Int64
	receives, requests, settled atomic.Int64
	done                        chan struct{}
	total                       int64
	delay                       time.Duration // of each request
}

func (f *free) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if err := backoff.Sleep(ctx, f.delay); err != nil {
		return nil, err
	}
	n := min(int64(r.Max), f.left.Load())
	if f.left.Add(-n); n <= 0 {
		return nil, backoff.Sleep(ctx, r.Wait)
	}
	f.receives.Add(1)
	from := int(f.next.Add(n)-n) % (len(f.ring) - int(n))
	return f.ring[from : from+int(n)], nil
}

func (f *free) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	if backoff.Sleep(context.WithoutCancel(ctx), f.delay) != nil {
		return nil
	}
	f.requests.Add(1)
	if f.settled.Add(int64(len(ds))) == f.total {
		close(f.done)
	}
	return make([]error, len(ds))
}

func (f *free) Settle(context.Context, *tidegate.Delivery, transport.Verdict) (transport.RetryResult, error) {
	return transport.RetryResult{}, nil
}

func (f *free) Extend(context.Context, *tidegate.Delivery, time.Duration, bool) (string, error) {
	return "", nil
}

func (f *free) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}

func (f *free) ConsumerSettings(context.Context, string, string) (transport.ConsumerSettings, error) {
	return transport.ConsumerSettings{}, nil
}

func (f *free) Queues(context.Context, string, string) ([]int, error) {
	return []int{transport.AnyQueue}, nil
}
func (f *free) Capabilities(string) transport.Capabilities { return ours }

// The engine's own cost of a message, with 64 workers and an empty handler, and with a server that
// takes 1 ms for a request. The allocations are those beyond decoding: the deliveries are made
// before.
func BenchmarkEngine(b *testing.B) {
	for _, delay := range []time.Duration{0, time.Millisecond} {
		b.Run(fmt.Sprint("delay=", delay), func(b *testing.B) {
			f := &free{done: make(chan struct{}), delay: delay}
			for i := range 4096 {
				f.ring = append(f.ring, &tidegate.Delivery{
					Message:       tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: make([]byte, 1<<10)},
					ConsumerGroup: "billing", Attempt: 1, Handle: fmt.Sprint("handle", i),
				})
			}
			p := assert.Value(consumer.NewPush(f, consumer.Subscription{Group: "billing", Topic: "orders"},
				func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{Concurrency: 64}))(b)
			f.total = int64(b.N)
			f.left.Store(f.total)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			ended := make(chan error, 1)
			b.ReportAllocs()
			b.ResetTimer()
			go func() { ended <- p.Run(ctx) }()
			<-f.done
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			b.ReportMetric(float64(b.N)/float64(f.receives.Load()), "messages/receive")
			b.ReportMetric(float64(b.N)/float64(f.requests.Load()), "acks/request")
			cancel()
			err := <-ended
			assert.MustThat(b, err == nil, "%v", err)
		})
	}
}
