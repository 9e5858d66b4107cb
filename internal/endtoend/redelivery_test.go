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
	"github.com/tidegate/tidegate/internal/assert"
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
		assert.Must(t, assert.Err(b.PutAddressSettings(t.Context(), "#", settings.Address{
			RedeliveryDelay: new(settings.Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(settings.Milliseconds(15000)),
			MaxDeliveryAttempts: new(5), DeadLetterAddress: new("deadLetterAddress"),
		})))
		stop2 := Consume(t, b, consumer.Subscription{Topic: "exampleQueue", Group: "g2"}, func(context.Context, *tidegate.Delivery) error { return nil })
		defer stop2()
		MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "exampleQueue", Body: []byte("x")})
		<-time.After(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		want := []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 15 * time.Second}
		assert.That(t, slices.Equal(waits, want), "it was delivered again after %v, want %v", waits, want)
		ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "ops", Topic: "deadLetterAddress", Queue: transport.AnyQueue, InvisibleDuration: time.Minute})
		assert.That(t, err == nil && len(ds) == 1 && ds[0].Properties["_AMQ_ORIG_ADDRESS"] == "exampleQueue", "%d dead letters, %v", len(ds), err)
	})
}
