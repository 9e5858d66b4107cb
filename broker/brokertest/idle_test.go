package brokertest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// countRequests counts the requests to the broker.
func countRequests(b *brokertest.Broker) *atomic.Int64 {
	var n atomic.Int64
	b.Intercept(func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
		n.Add(1)
		return next(ctx)
	})
	return &n
}

// consumeNothing runs an idle consumer for three hours.
func consumeNothing(tb testing.TB, b *brokertest.Broker) {
	b.CreateTopic("orders", settings.Topic{})
	b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return nil })
	<-time.After(3 * time.Hour)
	if s := b.Stats("billing", "orders"); s.Topic != "orders" {
		tb.Error("the consumer has not received")
	}
}

// failAlways takes a message through the whole retry schedule.
func failAlways(tb testing.TB, b *brokertest.Broker) {
	b.CreateTopic("orders", settings.Topic{})
	b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return errors.New("out of stock") })
	start := time.Now()
	b.Send(&tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
	b.WaitDeadLetter("billing")
	// RocketMQ's 16 intervals from 10 s to 2 h are 4 h 46 m in all.
	if took := time.Since(start).Round(time.Minute); took != 4*time.Hour+46*time.Minute {
		tb.Errorf("a dead letter after %v, want 4h46m", took)
	}
}

// Requests are nearly the whole cost of an idle consumer. Every five minutes it sends a
// receive, a heartbeat and a request for changes, which are 108 in three hours.
func TestIdleConsumerSendsFewRequests(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		n := countRequests(b)
		consumeNothing(t, b)
		if n := n.Load(); n > 120 {
			t.Errorf("%d requests in three hours, want at most 120", n)
		}
	})
}

func TestRetryScheduleTakesFewRequests(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		n := countRequests(b)
		failAlways(t, b)
		if n := n.Load(); n > 280 {
			t.Errorf("%d requests for the retry schedule, want at most 280", n)
		}
	})
}

// A queue that is added while the consumer is idle is found, although the intervals are long.
func TestIdleConsumerFindsNewQueues(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
		b.CreateGroup("billing", settings.Group{FIFO: true})
		var handled atomic.Int64
		b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error {
			handled.Add(1)
			return nil
		})
		time.Sleep(time.Hour)
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO, Queues: 8})
		for _, group := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			b.Send(&tidegate.Message{Topic: "orders", MessageGroup: group, Body: []byte("3 apples")})
		}
		b.WaitIdle("billing", "orders")
		if n := handled.Load(); n != 8 {
			t.Errorf("%d messages of 8 were handled", n)
		}
	})
}
