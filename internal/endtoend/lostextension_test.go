package endtoend

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// The broker carries out an extension, but its response is lost, so the consumer has a replaced
// handle. Neither the next extension nor an earlier settlement may treat this as the loss of the
// lease.
func TestLostResponsesToExtensions(t *testing.T) {
	failed := errors.New("out of stock")
	for name, tt := range map[string]struct {
		lost  int64 // changes of the invisible duration whose responses are lost
		works time.Duration
		err   error
		stop  time.Duration // of the consumer; 0: after the settlement
		want  consumer.Disposition
	}{
		"one, and others follow":             {1, 25 * time.Second, nil, 0, consumer.Acked},
		"three":                              {3, 40 * time.Second, nil, 0, consumer.Acked},
		"one, and the handler returns":       {1, 14 * time.Second, nil, 0, consumer.Acked},
		"two, of which one is after that":    {2, 14 * time.Second, nil, 0, consumer.Acked},
		"one, and the handler fails":         {1, 14 * time.Second, failed, 0, consumer.Retried},
		"one, and it wants a dead letter":    {1, 14 * time.Second, consumer.DeadLetterNow(failed), 0, consumer.DeadLettered},
		"one, and the consumer has no time":  {1, time.Minute, failed, 12 * time.Second, consumer.Released},
		"all, and the lease ends in the end": {1000, 2 * time.Minute, nil, 0, consumer.LeaseLost},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{})
			b.CreateGroup("billing", settings.Group{})
			var lost atomic.Int64
			defer b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
				err := next(ctx)
				if call.Op == "ChangeInvisibleDuration" && lost.Add(1) <= tt.lost {
					return server.ErrNoAnswer
				}
				return err
			})()
			var mu sync.Mutex
			var outcomes []consumer.Outcome
			settled := make(chan struct{}, 100)
			c := assert.Value(consumer.NewPush(b.Client(), consumer.Subscription{Topic: "orders", Group: "billing"},
				func(ctx context.Context, _ *tidegate.Delivery) error {
					select {
					case <-time.After(tt.works):
						return tt.err
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}, consumer.PushOptions{ShutdownTimeout: time.Second, OnDelivery: func(o consumer.Outcome) {
					mu.Lock()
					defer mu.Unlock()
					outcomes = append(outcomes, o)
					settled <- struct{}{}
				}}))(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "orders", Body: []byte("x")})
			go func() { done <- c.Run(ctx) }()
			if tt.stop > 0 {
				time.AfterFunc(tt.stop, cancel)
			}
			<-settled
			cancel()
			assert.NoError(t, <-done)
			mu.Lock()
			defer mu.Unlock()
			if o := outcomes[0]; o.Delivery.Attempt != 1 || o.Disposition != tt.want || tt.want != consumer.LeaseLost && o.SettleErr != nil {
				t.Errorf("%+v, want %v", o, tt.want)
			}
			s := b.Stats("billing", "orders")
			if left := s.Backlog.Messages; (left == 0) != (tt.want == consumer.Acked || tt.want == consumer.DeadLettered) || s.Redelivered != 0 {
				t.Errorf("%d messages are left, and the broker reports %+v", left, s)
			}
		}))
	}
}
