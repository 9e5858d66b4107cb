package endtoend

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// BenchmarkPushSDK consumes messages of 1 KiB with a push consumer, 64 workers and a handler that
// does nothing, from a broker on disk, until every acknowledgement is on disk: without an order,
// and in 1 000 message groups of a FIFO group. In turns within the same run 64 callers send as many
// messages one by one to a server that only responds (echo). echo/ratio is the consumer's rate
// divided by theirs; allocs/msg counts client and server.
func BenchmarkPushSDK(b *testing.B) {
	for name, fifo := range map[string]bool{"unordered": false, "groups=1000": true} {
		b.Run(name, func(b *testing.B) {
			const messages, callers = 32 << 10, 64
			topic, groups := settings.Topic{}, 0
			if fifo {
				topic.Type, groups = settings.TopicFIFO, 1000
			}
			c := newCountingClient(b, serveDiskWith(b, topic, settings.Group{FIFO: fifo}))
			floor := rawCalls(b, serveEcho(b), callers)
			var took [2]time.Duration
			var allocs uint64
			n := 0
			for b.Loop() {
				took[0] += closedLoops(b, callers, messages, floor)
				c.fill(b, messages, []string{"t"}, groups)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				d, _ := c.consume(b, messages, callers, consumer.Subscription{Group: "g", Topic: "t"})
				took[1] += d
				runtime.ReadMemStats(&after)
				allocs += after.Mallocs - before.Mallocs
				n += messages
			}
			b.ReportMetric(float64(n)/took[1].Seconds(), "msg/s")
			b.ReportMetric(float64(n)/took[0].Seconds(), "echo-msg/s")
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "echo/ratio")
			b.ReportMetric(float64(c.messages.Load())/float64(max(c.receives.Load(), 1)), "msg/receive")
			b.ReportMetric(float64(allocs)/float64(n), "allocs/msg")
			b.ReportMetric(0, "ns/op") // of a round of filling and both: means nothing
		})
	}
}

// A countingClient is the SDK's client, and counts the received messages.
type countingClient struct {
	*rocketmq.Client
	receives, messages atomic.Int64
}

func newCountingClient(b *testing.B, address string) *countingClient {
	b.Helper()
	c := assert.Value(rocketmq.New(address, rocketmq.Options{}))(b)
	b.Cleanup(func() { c.Close() })
	return &countingClient{Client: c}
}

// Receive receives as the client does.
func (c *countingClient) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := c.Client.Receive(ctx, r)
	if len(ds) > 0 {
		c.receives.Add(1)
		c.messages.Add(int64(len(ds)))
	}
	return ds, err
}

// ReceiveOrWatch receives as the client does.
func (c *countingClient) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, <-chan struct{}, error) {
	ds, ready, err := c.Client.ReceiveOrWatch(ctx, r)
	if len(ds) > 0 {
		c.receives.Add(1)
		c.messages.Add(int64(len(ds)))
	}
	return ds, ready, err
}

// fill stores n messages, batches of each topic in turns, of so many message groups in turns if
// there are any.
func (c *countingClient) fill(b *testing.B, n int, topics []string, groups int) {
	const batch, senders = 64, 8
	body := make([]byte, 1<<10)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for from := int(next.Add(batch)) - batch; from < n; from = int(next.Add(batch)) - batch {
				msgs := make([]*tidegate.Message, min(batch, n-from))
				for i := range msgs {
					msgs[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topics[from/batch%len(topics)], Body: body}
					if groups > 0 {
						msgs[i].MessageGroup = fmt.Sprint((from + i) % groups)
					}
				}
				for _, r := range c.Send(b.Context(), msgs) {
					if r.Err != nil {
						b.Error(r.Err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow() // consume would wait for the missing messages without end
	}
}

// consume consumes n messages, and returns the time until the last acknowledgement: took from the
// start, and steady from the first acknowledgement.
func (c *countingClient) consume(b *testing.B, n, workers int, sub consumer.Subscription) (took, steady time.Duration) {
	var settled, first atomic.Int64
	var start time.Time
	done := make(chan struct{})
	p := assert.Value(consumer.NewPush(c, sub,
		func(context.Context, *tidegate.Delivery) error { return nil },
		consumer.PushOptions{Concurrency: workers, OnDelivery: func(o consumer.Outcome) {
			if o.Disposition != consumer.Acked { // a helper with o as an argument would allocate
				b.Errorf("%+v", o)
			}
			switch settled.Add(1) {
			case 1:
				first.Store(int64(time.Since(start)))
			case int64(n):
				close(done)
			}
		}}))(b)
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	start = time.Now()
	go func() { ended <- p.Run(ctx) }()
	<-done
	took = time.Since(start)
	stop()
	assert.NoError(b, <-ended)
	return took, took - time.Duration(first.Load())
}
