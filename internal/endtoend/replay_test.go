package endtoend

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// The response to a FIFO receive is lost. The repeated receive returns the same delivery 24 s
// later, with 6 s left of its invisible time. The consumer must extend the lease within these 6 s.
// Otherwise the broker delivers the message again while the first handler still works.
func TestLostReceiveOfAFIFOGroupIsOneDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
		b.CreateGroup("billing", settings.Group{FIFO: true})
		MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "orders", MessageGroup: "a", Body: []byte("x")})
		var lost atomic.Bool
		b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			err := next(ctx)
			if call.Op == "ReceiveMessage" && err == nil && lost.CompareAndSwap(false, true) {
				return brokertest.ErrNoAnswer
			}
			return err
		})
		var calls atomic.Int64
		stop := runPush(t, b.Client(), func(ctx context.Context, d *tidegate.Delivery) error {
			calls.Add(1)
			if left := time.Until(d.InvisibleUntil); left < time.Second || left > 10*time.Second || d.Attempt != 1 {
				t.Errorf("attempt %d with %v left, want the first one again with the rest of its lease", d.Attempt, left)
			}
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				t.Errorf("the handler lost its message: %v", context.Cause(ctx))
				return errors.New("lost")
			}
		}, consumer.PushOptions{LongPolling: 20 * time.Second}) // as in production
		defer stop()
		time.Sleep(3 * time.Minute)
		if calls.Load() != 1 {
			t.Errorf("%d deliveries, want 1", calls.Load())
		}
	})
}
