package retries

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/policy"
)

// The messages of one topic have the schedules, maximums and ends of their policies. The actual
// delays are those of the consumer's previews.
//
// Attempts per message, and their sources.
func TestPoliciesOnABroker(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.CreateGroup("billing", settings.Group{MaxAttempts: 5, Retry: backoff.Steps{time.Minute}})
		var mu sync.Mutex
		at, ends := map[string][]time.Time{}, map[string]consumer.Disposition{}
		c, err := consumer.NewPush(b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"},
			func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				at[d.ID] = append(at[d.ID], time.Now())
				return errors.New("no connection")
			}, consumer.PushOptions{
				Policies: []policy.Policy{
					{Topic: "orders", Tag: "invoice", Retry: backoff.Steps{time.Second, 2 * time.Minute}, MaxAttempts: 4},
					{Tag: "noise", MaxAttempts: 2, Exhausted: policy.Discard},
					{Properties: map[string]string{"tenant": "acme"}, MaxAttempts: 30},
				},
				OnDelivery: func(o consumer.Outcome) {
					mu.Lock()
					defer mu.Unlock()
					ends[o.Delivery.ID] = o.Disposition
				},
			})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		messages := []*tidegate.Message{
			{Topic: "orders", Body: []byte("x")},
			{Topic: "orders", Body: []byte("x"), Tag: "invoice"},
			{Topic: "orders", Body: []byte("x"), Tag: "noise"},
			{Topic: "orders", Body: []byte("x"), Properties: map[string]string{"tenant": "acme"}},
		}
		receipts := b.Send(messages...)
		b.WaitIdle("billing", "orders")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for i, want := range []consumer.Disposition{consumer.DeadLettered, consumer.DeadLettered, consumer.Discarded, consumer.DeadLettered} {
			e, err := c.EffectivePolicy(t.Context(), messages[i])
			if err != nil {
				t.Fatal(err)
			}
			times, end := at[receipts[i].MessageID], ends[receipts[i].MessageID]
			var got, preview []time.Duration
			for n, stage := range e.Preview() {
				preview = append(preview, stage.Lo)
				if n+1 < len(times) {
					got = append(got, times[n+1].Sub(times[n]).Round(20*time.Millisecond))
				}
			}
			if !slices.Equal(got, preview) || len(times) != e.MaxAttempts || end != want || (e.Exhausted == policy.Discard) != (want == consumer.Discarded) {
				t.Errorf("message %d: %d deliveries after %v, and %v; the consumer announced\n%v\n%v", i, len(times), got, end, e, e.Preview())
			}
			if (len(e.Findings) > 0) != (i == 3) {
				t.Errorf("message %d: findings %q", i, e.Findings)
			}
		}
		if n := b.Stats("billing", "orders").DeadLetters; n != 3 {
			t.Errorf("%d dead letters, want 3", n)
		}
	})
}
