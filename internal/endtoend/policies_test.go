package endtoend

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
	"github.com/tidegate/tidegate/transport"
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

// A policy with more attempts than the server's maximum discards no message, also after deliveries
// beyond that maximum: in a blocked message group, and after negative acknowledgements.
func TestLowerMaximumOfTheServer(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
		b.CreateTopic("mails", settings.Topic{})
		b.CreateGroup("fifo", settings.Group{FIFO: true, MaxAttempts: 2, OnExhausted: settings.OnExhaustedBlock, Retry: backoff.Steps{time.Second}})
		b.CreateGroup("plain", settings.Group{MaxAttempts: 3, Retry: backoff.Steps{time.Second}})
		failed := errors.New("no connection")
		policies := []policy.Policy{{MaxAttempts: 5, Exhausted: policy.Discard}}
		var mu sync.Mutex
		attempts, ends := map[string]int{}, map[string][]consumer.Disposition{}
		run := func(group, topic string, fail func(attempt int) error) *consumer.Push {
			c, err := consumer.NewPush(b.Client(), consumer.Subscription{Group: group, Topic: topic},
				func(_ context.Context, d *tidegate.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					attempts[group] = d.Attempt
					return fail(d.Attempt)
				}, consumer.PushOptions{Policies: policies, OnDelivery: func(o consumer.Outcome) {
					mu.Lock()
					defer mu.Unlock()
					ends[group] = append(ends[group], o.Disposition)
				}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
			return c
		}
		b.Send(&tidegate.Message{Topic: "orders", MessageGroup: "g", Body: []byte("x")}, &tidegate.Message{Topic: "mails", Body: []byte("x")})
		fifo := run("fifo", "orders", func(int) error { return failed })
		run("plain", "mails", func(attempt int) error {
			if attempt < 5 {
				return consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck}, failed)
			}
			return failed
		})
		time.Sleep(20 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if n := b.Stats("fifo", "orders"); attempts["fifo"] < 6 || slices.Contains(ends["fifo"], consumer.Discarded) || n.Backlog.Messages != 1 {
			t.Errorf("the blocked message had %d attempts, the ends %v, and the group has %+v; want it blocked", attempts["fifo"], ends["fifo"], n.Backlog)
		}
		if n := b.Stats("plain", "mails"); attempts["plain"] != 5 || n.DeadLetters != 1 || slices.Contains(ends["plain"], consumer.Discarded) {
			t.Errorf("the message of the other group had %d attempts, the ends %v, and there are %d dead letters; want one", attempts["plain"], ends["plain"], n.DeadLetters)
		}
		e, err := fifo.EffectivePolicy(t.Context(), &tidegate.Message{})
		if err != nil || e.MaxAttempts != 2 || e.Exhausted != policy.DeadLetter || len(e.Findings) != 1 {
			t.Errorf("the consumer announces %v, %v", e, err)
		}
	})
}
