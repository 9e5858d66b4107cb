package endtoend

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// The retry schedule is the same for an error, a panic, a handler that outlives the extensions of
// its lease, and a worker that is lost with its lease.
func TestEveryFailureHasTheSameDelay(t *testing.T) {
	const lease = 30 * time.Second
	for name, tt := range map[string]struct {
		fail  consumer.Handler
		opts  consumer.PushOptions
		until time.Duration // from the delivery to the failure
	}{
		"error": {fail: func(context.Context, *tidegate.Delivery) error { return errors.New("broken") }},
		"panic": {fail: func(context.Context, *tidegate.Delivery) error { panic("broken") }},
		"timeout": {func(ctx context.Context, _ *tidegate.Delivery) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, consumer.PushOptions{MaxExtension: -1, InvisibleDuration: lease}, lease},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := brokertest.New(t)
				b.CreateTopic("orders", settings.Topic{})
				b.CreateGroup("billing", settings.Group{})
				var mu sync.Mutex
				var waits []time.Duration
				var last time.Time
				c, err := consumer.NewPush(b.Client(), consumer.Subscription{Topic: "orders", Group: "billing"}, func(ctx context.Context, d *tidegate.Delivery) error {
					mu.Lock()
					if !last.IsZero() {
						waits = append(waits, time.Since(last).Round(100*time.Millisecond)-tt.until)
					}
					last = time.Now()
					done := len(waits) == 3
					mu.Unlock()
					if done {
						return nil
					}
					return tt.fail(ctx, d)
				}, tt.opts)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx) }()
				MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "orders", Body: []byte("x")})
				<-time.After(10 * time.Minute)
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for i, want := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute} {
					if len(waits) != 3 || waits[i] != want {
						t.Fatalf("it was delivered again after %v, want 10s, 30s and 1m0s after each failure", waits)
					}
				}
			})
		})
	}
}
