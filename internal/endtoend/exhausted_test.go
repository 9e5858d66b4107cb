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
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// dispositions runs a push consumer with the handler fail for ten minutes, and returns the outcomes
// of its deliveries.
func dispositions(t *testing.T, b *brokertest.Broker, sub consumer.Subscription, m *tidegate.Message, fail consumer.Handler) (list []consumer.Outcome) {
	t.Helper()
	var mu sync.Mutex
	stop := run(t, b.Client(), sub, fail, consumer.PushOptions{OnDelivery: func(o consumer.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, o)
	}})
	<-time.After(time.Second) // the consumer gets the group's settings
	MustSend(t, NewProducer(t, b, producer.Options{}), m)
	<-time.After(10 * time.Minute)
	stop()
	return list
}

// The broker decides at the moment of the failure whether it was the last attempt. The consumer's
// copy of the maximum may be seconds old, and a dead letter would let the later messages of the
// group continue.
//
// RocketMQ: consumption retry: "Specified in the metadata when a consumer group is created"
func TestMaximumOfTheMomentHolds(t *testing.T) {
	for exhausted, want := range map[settings.OnExhausted]consumer.Disposition{
		settings.OnExhaustedPark: consumer.Parked, settings.OnExhaustedDeadLetter: consumer.DeadLettered,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
			group := settings.Group{FIFO: true, MaxAttempts: 3, OnExhausted: exhausted, FIFORetryInterval: settings.Duration(time.Second)}
			b.CreateGroup("billing", group)
			failed := errors.New("out of stock")
			list := dispositions(t, b, consumer.Subscription{Topic: "orders", Group: "billing"},
				&tidegate.Message{Topic: "orders", MessageGroup: "customer 7", Body: []byte("x")},
				func(_ context.Context, d *tidegate.Delivery) error {
					if d.Attempt == 3 {
						group.MaxAttempts = 10
						assert.NoError(t, assert.Err(b.PutGroup(t.Context(), "billing", group)))
						<-time.After(time.Second)
					}
					return failed
				})
			assert.MustThat(t, len(list) == 10, "%s: %d deliveries, want 10: %+v", exhausted, len(list), list)
			for i, o := range list[:9] {
				assert.That(t, o.Delivery.Attempt == i+1 && o.Disposition == consumer.Retried && o.Delay == time.Second, "%s: delivery %d: %+v", exhausted, i+1, o)
			}
			if o := list[9]; o.Disposition != want || o.Delay != 0 || !errors.Is(o.Err, failed) || o.SettleErr != nil {
				t.Errorf("%s: the last delivery: %+v", exhausted, o)
			}
			page := assert.Value(b.Parked("billing", status.ParkedQuery{}))(t)
			reasons := []string{}
			for _, p := range page.Groups {
				reasons = append(reasons, p.Reason)
			}
			s := b.Stats("billing", "orders")
			assert.That(t, want != consumer.Parked || slices.Equal(reasons, []string{"out of stock"}) && s.DeadLetters == 0, "parked for %q, and %+v", reasons, s)
			assert.That(t, want != consumer.DeadLettered || len(reasons) == 0 && s.DeadLetters == 1, "parked for %q, and %+v", reasons, s)
		})
	}
}
