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
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// The delays and the number of deliveries of the manual's example hold for a push consumer that was
// started before they were set. They override the delays that the consumer requests and the 3
// attempts that it was started with.
//
// Artemis: undelivered messages: "Both options can be combined for maximum flexibility."
func TestAddressSettingsThroughGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("exampleQueue", settings.Topic{})
		b.CreateGroup("g", settings.Group{MaxAttempts: 3})
		var mu sync.Mutex
		var waits []time.Duration
		var last time.Time
		stop := Consume(t, b, consumer.Subscription{Topic: "exampleQueue", Group: "g"}, func(context.Context, *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if !last.IsZero() {
				waits = append(waits, time.Since(last).Round(100*time.Millisecond))
			}
			last = time.Now()
			return errors.New("the database is away")
		})
		defer stop()
		<-time.After(time.Second)
		if _, err := b.PutAddressSettings(t.Context(), "#", settings.Address{
			RedeliveryDelay: new(settings.Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(settings.Milliseconds(15000)),
			MaxDeliveryAttempts: new(5), DeadLetterAddress: new("deadLetterAddress"),
		}); err != nil {
			t.Fatal(err)
		}
		stop2 := Consume(t, b, consumer.Subscription{Topic: "exampleQueue", Group: "g2"}, func(context.Context, *tidegate.Delivery) error { return nil })
		defer stop2()
		MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "exampleQueue", Body: []byte("x")})
		<-time.After(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		want := []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 15 * time.Second}
		if !slices.Equal(waits, want) {
			t.Errorf("it was delivered again after %v, want %v", waits, want)
		}
		ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "ops", Topic: "deadLetterAddress", Queue: transport.AnyQueue, InvisibleDuration: time.Minute})
		if err != nil || len(ds) != 1 || ds[0].Properties["_AMQ_ORIG_ADDRESS"] != "exampleQueue" {
			t.Errorf("%d dead letters, %v", len(ds), err)
		}
	})
}

// A consumer that connects gets the redelivery settings of its topic. The outcome of a delivery is
// the broker's decision, not the handler's request.
func TestAddressSettingsAreAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("t", settings.Topic{})
		b.CreateGroup("g", settings.Group{MaxAttempts: 3})
		if _, err := b.PutAddressSettings(t.Context(), "t", settings.Address{
			RedeliveryDelay: new(settings.Milliseconds(2000)), MaxDeliveryAttempts: new(6), DeadLetterAddress: new("DLA"),
		}); err != nil {
			t.Fatal(err)
		}
		var outcomes []consumer.Outcome
		var mu sync.Mutex
		c, err := consumer.NewPush(b.Client(), consumer.Subscription{Topic: "t", Group: "g"},
			func(context.Context, *tidegate.Delivery) error {
				return consumer.RetryIn(time.Minute, errors.New("no"))
			},
			consumer.PushOptions{OnDelivery: func(o consumer.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				outcomes = append(outcomes, o)
			}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "t", Body: []byte("x")})
		<-time.After(5 * time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(outcomes) != 6 || outcomes[0].Delay != 2*time.Second || outcomes[5].Disposition != consumer.DeadLettered {
			t.Errorf("%d outcomes: %+v", len(outcomes), outcomes)
		}
	})
}

// TDMQ for Pulsar: retry and dead letters: "Since the consumer automatically subscribes to this
// topic, the message will be re-consumed based on specific retry rules."
//
// A push consumer of the SDK gets retries over gRPC from the same receive as other messages.
func TestReconsumeLaterThroughGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("topic1", settings.Topic{})
		b.CreateGroup("sub1", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		var mu sync.Mutex
		var times []string
		start := time.Now()
		var at []time.Duration
		stop := Consume(t, b, consumer.Subscription{Topic: "topic1", Group: "sub1"}, func(ctx context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			times = append(times, d.Topic+" "+d.Properties["RECONSUMETIMES"])
			at = append(at, time.Since(start).Round(100*time.Millisecond))
			if len(times) == 4 {
				return nil
			}
			_, err := b.Broker.Settle(ctx, d, transport.Verdict{Kind: transport.RetryTopic})
			return err // the acknowledgement that follows comes late, and is rejected
		})
		MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "topic1", Body: []byte("x")})
		<-time.After(5 * time.Minute)
		stop()
		if want := []string{"topic1 ", "topic1 1", "topic1 2", "topic1 3"}; !slices.Equal(times, want) {
			t.Errorf("deliveries %q, want %q", times, want)
		}
		if want := []time.Duration{0, time.Second, 6 * time.Second, 16 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("they came at %v, want %v", at, want)
		}
		if s := b.Stats("sub1", "topic1-sub1-RETRY"); s.Backlog.Messages != 0 || s.Acked != 3 {
			t.Errorf("the retry topic has %+v", s)
		}
	})
}
