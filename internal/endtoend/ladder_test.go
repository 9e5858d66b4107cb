package endtoend

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// A handler that always fails gets every delivery of the retry schedule through real gRPC: 17
// deliveries in 4 h 46 m, each at its exact time, then the dead letter.
// RocketMQ: consumption retry: "A message fails to be consumed. In this case, the consumer returns
// a failure status or the system throws an exception"
// RocketMQ: consumption retry: "Retry the message until the maximum number of retries is reached"
// RocketMQ: consumption retry: "You can consume messages in a dead-letter queue to restore your
// business"
func TestWholeLadderThroughGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		p := NewProducer(t, b, producer.Options{})
		MustSend(t, p, &tidegate.Message{Topic: "orders", Body: []byte("poison"), Tag: "t", Keys: []string{"k"}, Properties: map[string]string{"a": "b"}})

		start := time.Now()
		var at []time.Duration
		stop := Consume(t, b, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			at = append(at, time.Since(start))
			assert.That(t, d.Attempt == len(at), "delivery %d has attempt %d", len(at), d.Attempt)
			return errors.New("out of stock")
		})
		defer stop()

		dead, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "ops", Topic: tidegate.DeadLetterTopic("billing")}, consumer.SimpleOptions{})
		assert.Must(t, err)
		<-time.After(4*time.Hour + 47*time.Minute)
		ds, err := dead.Receive(t.Context(), 10)
		assert.MustThat(t, err == nil && len(ds) == 1, "%d dead letters, %v", len(ds), err)
		d := ds[0]
		assert.NoError(t, dead.Ack(t.Context(), d))

		want := time.Duration(0)
		ladder := backoff.RetryLadder()
		for i, got := range at {
			assert.That(t, got == want, "delivery %d was at %v, due at %v", i+1, got, want)
			want += ladder.Delay(i)
		}
		assert.MustThat(t, len(at) == 17, "%d deliveries, want 17", len(at))
		if at[16].Round(time.Minute) != 4*time.Hour+46*time.Minute {
			t.Errorf("the last one was after %v, want 4h46m", at[16])
		}
		o, ok := d.DeadLetter()
		assert.That(t, ok && o.Topic == "orders" && o.MessageID == d.ID && o.Group == "billing" && o.Attempts == 17 && o.Reason == "out of stock", "the origin of the dead letter is %+v, %v", o, ok)
		assert.That(t, string(d.Body) == "poison" && d.Tag == "t" && d.Keys[0] == "k" && d.Properties["a"] == "b", "the dead letter lost something: %+v", d)
	})
}

// A consumer without intervals of its own uses those of its group's metadata.
//
// RocketMQ: consumption retry: "Specified in the metadata when a consumer group is created.
// Unordered messages: incremental Ordered messages: fixed"
// RocketMQ: consumption retry: "You can increase the interval between retries to prevent frequent
// retries"
func TestIntervalsAreTheGroups(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		config settings.Group
		want   []time.Duration
	}{
		{settings.Group{MaxAttempts: 4, Retry: backoff.Steps{5 * s, 50 * s}}, []time.Duration{5 * s, 50 * s, 50 * s}},
		{settings.Group{MaxAttempts: 4, FIFO: true, FIFORetryInterval: settings.Duration(7 * s)}, []time.Duration{7 * s, 7 * s, 7 * s}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			topic, m := settings.Topic{}, &tidegate.Message{Topic: "orders", Body: []byte("x")}
			if c.config.FIFO {
				topic.Type, m.MessageGroup = settings.TopicFIFO, "a"
			}
			b.CreateTopic("orders", topic)
			b.CreateGroup("g", c.config)
			MustSend(t, NewProducer(t, b, producer.Options{}), m)
			var gaps []time.Duration
			var last time.Time
			stop := Consume(t, b, consumer.Subscription{Group: "g", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
				if !last.IsZero() {
					gaps = append(gaps, time.Since(last))
				}
				last = time.Now()
				return errors.New("out of stock")
			})
			<-time.After(5 * time.Minute)
			stop()
			assert.That(t, slices.Equal(gaps, c.want), "%+v: delivered again after %v, want %v", c.config, gaps, c.want)
		})
	}
}
