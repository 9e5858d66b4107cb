package endtoend

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
)

// Requests and responses take up to 40 s each, at random, and every fifth response is lost. Two
// consumers work on the same messages for up to three minutes each. When a lease is lost, the
// handler's ctx ends with ErrLeaseLost before the broker delivers the message again: no two
// handlers have one message at the same time.
func TestNoTwoHandlersAtAnyNetworkDelay(t *testing.T) {
	lost, acked := 0, 0
	// With the first seed two handlers overlapped in one of three runs: a response reported a
	// remaining time of zero for a lease that had ended, and the consumer handled the message.
	for _, seed := range []uint64{3569062755271691894, rand.Uint64(), rand.Uint64()} {
		brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			var mu sync.Mutex
			upTo := func(d time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rnd.Int64N(int64(d)))
			}
			slowest := 1 + upTo(40*time.Second)
			b.CreateTopic("orders", settings.Topic{})
			b.CreateGroup("billing", settings.Group{MaxAttempts: -1})
			restore := b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
				if call.Op != "ReceiveMessage" && call.Op != "ChangeInvisibleDuration" && call.Op != "AckMessage" {
					return next(ctx)
				}
				sleep(ctx, upTo(slowest)/2)
				err := next(context.WithoutCancel(ctx))
				sleep(ctx, upTo(slowest)/2)
				if upTo(5) == 0 {
					return brokertest.ErrConnectionLost
				}
				return err
			})
			var seen outcomes
			var working sync.Map // bodies
			var overlap atomic.Int64
			handler := func(ctx context.Context, d *tidegate.Delivery) error {
				if _, other := working.Swap(string(d.Body), true); other {
					overlap.Add(1)
				}
				defer working.Delete(string(d.Body))
				select {
				case <-time.After(upTo(3 * time.Minute)):
					return nil
				case <-ctx.Done():
					if cause := context.Cause(ctx); !errors.Is(cause, consumer.ErrLeaseLost) && !errors.Is(cause, consumer.ErrShutdown) {
						t.Errorf("the handler's context ended because of %v", cause)
					}
					return context.Cause(ctx)
				}
			}
			o := consumer.PushOptions{Concurrency: 4, ShutdownTimeout: 10 * time.Second, OnDelivery: seen.Add}
			stop1, stop2 := runPush(t, b.Client(), handler, o), runPush(t, b.Client(), handler, o)
			for n := range 20 {
				b.Send(Order(n))
			}
			<-time.After(10 * time.Minute)
			restore()
			b.WaitIdle("billing", "orders")
			stop1()
			stop2()
			for _, o := range seen.All() {
				switch o.Disposition {
				case consumer.LeaseLost:
					lost++
				case consumer.Acked:
					acked++
				}
			}
			if n := b.Stats("billing", "orders").Acked; n != 20 || overlap.Load() != 0 {
				t.Errorf("seed %d, delays up to %v: %d of 20 messages were handled, %d handlers began while another one had the message", seed, slowest, n, overlap.Load())
			}
		})
	}
	assert.That(t, lost >= 3 && acked >= 6, "%d leases were lost and %d messages acknowledged: the test shows nothing", lost, acked)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
