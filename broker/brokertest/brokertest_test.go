package brokertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/endtoend"
	"github.com/tidegate/tidegate/producer"
)

func TestInterceptDelaysRejectsAndThrottles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		client := b.Client()
		send := func() error {
			return client.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}})[0].Err
		}
		with := func(m brokertest.Middleware) (took time.Duration, err error) {
			remove := b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
				if call.Op == "SendMessage" {
					return m(ctx, call, next)
				}
				return next(ctx)
			})
			defer remove()
			start := time.Now()
			err = send()
			return time.Since(start), err
		}
		if took, err := with(func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			<-time.After(2 * time.Second)
			return next(ctx)
		}); err != nil || took != 2*time.Second {
			t.Errorf("delayed: %v after %v", err, took)
		}
		_, err := with(func(context.Context, server.Call, func(context.Context) error) error {
			return brokertest.Throttled(7 * time.Second)
		})
		e, ok := errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && errors.Is(err, tidegate.ErrThrottled) && e.RetryAfter == 7*time.Second, "throttled: %#v", err)
		_, err = with(func(context.Context, server.Call, func(context.Context) error) error {
			return &tidegate.Error{Code: tidegate.CodeForbidden, Message: "not today"}
		})
		assert.Is(t, "refused", err, tidegate.ErrForbidden)
		took, err := with(func(context.Context, server.Call, func(context.Context) error) error { return server.ErrNoAnswer })
		e, ok = errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && e.MaybeStored && took == 3*time.Second, "no response: %v after %v", err, took)
		assert.NoError(t, send(), "after everything was removed")
	})
}

// Many starts and stops, with a producer and a consumer at work, leave no goroutine: a bubble does
// not end while one is left. The step "random tests" of .ci/run repeats this test.
func TestStartsAndStopsLeaveNothing(t *testing.T) {
	for i := range 40 {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{Queues: 1})
			p := endtoend.NewProducer(t, b, producer.Options{})
			got := make(chan struct{})
			stop := endtoend.Consume(t, b, consumer.Subscription{Group: "g", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
				got <- struct{}{}
				return nil
			})
			endtoend.MustSend(t, p, &tidegate.Message{Topic: "orders", Body: fmt.Append(nil, i)})
			<-got
			stop()
			if i%2 == 0 {
				b.Close() // before its clients
			}
		})
	}
}
