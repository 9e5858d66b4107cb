package endtoend

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// The context of a handler that exceeds the broker's maximum for a delivery ends before the
// redelivery, however long the consumer would extend the lease.
//
// RocketMQ: consumption retry: "The maximum consumption interval is specified by a system parameter
// on the broker and cannot be exceeded"
func TestLongHandlerMeetsTheBrokersMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.NewWith(t, brokertest.Options{Broker: broker.Options{MaxInvisibleDuration: 10 * time.Minute}})
		b.CreateTopic("orders", settings.Topic{})
		b.CreateGroup("billing", settings.Group{Retry: []time.Duration{time.Minute}})
		var mu sync.Mutex
		var begun, ended []time.Duration
		start := time.Now()
		handler := func(ctx context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			begun = append(begun, time.Since(start))
			mu.Unlock()
			if d.Attempt > 1 {
				return nil
			}
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, time.Since(start))
			if cause := context.Cause(ctx); !errors.Is(cause, consumer.ErrLeaseLost) {
				t.Errorf("the handler's context ended with %v", cause)
			}
			return context.Cause(ctx)
		}
		var seen []consumer.Disposition
		c, err := consumer.NewPush(b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, handler, consumer.PushOptions{
			MaxExtension: 24 * time.Hour,
			OnDelivery:   func(o consumer.Outcome) { mu.Lock(); seen = append(seen, o.Disposition); mu.Unlock() },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "orders", Body: []byte("x")})
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		const most = 10 * time.Minute
		if len(ended) != 1 || ended[0] > most || ended[0] < most-20*time.Second {
			t.Fatalf("the handler's context ended after %v, want within %v", ended, most)
		}
		// The lease ends 10 s to 30 s after the last extension that the broker granted; the retry
		// interval follows.
		if len(begun) != 2 || begun[1] <= ended[0] || begun[1] > most+time.Minute+time.Second {
			t.Errorf("the deliveries began after %v", begun)
		}
		if !slices.Equal(seen, []consumer.Disposition{consumer.LeaseLost, consumer.Acked}) {
			t.Errorf("outcomes %v", seen)
		}
	})
}
