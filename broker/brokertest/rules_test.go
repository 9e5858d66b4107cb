package brokertest_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The node ends while it has a message to answer. The producer sends it again
// at once, to the node that was started in its place; or, while there is none,
// as often as it may, and says so.
//
// RocketMQ: sending retry and throttling: "The connection is closed because the broker node is shut
// down or being restarted"
func TestSendSurvivesARestart(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			old, next := brokertest.New(t), brokertest.New(t)
			old.CreateTopic("orders", broker.TopicConfig{})
			next.CreateTopic("orders", broker.TopicConfig{})
			var dial atomic.Pointer[func(context.Context, string) (net.Conn, error)]
			dial.Store(new(old.Dial))
			closed := make(chan error, 1)
			remove := old.Intercept(func(ctx context.Context, call server.Call, h func(context.Context) error) error {
				if call.Op != "SendMessage" {
					return h(ctx)
				}
				dial.Store(new(next.Dial))
				if !restarted {
					dial.Store(new(func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }))
				}
				go func() { closed <- old.Close() }()
				<-ctx.Done()
				return context.Cause(ctx)
			})
			defer remove()
			c, err := rocketmq.New(old.Address(), rocketmq.Options{
				Dialer: func(ctx context.Context, addr string) (net.Conn, error) { return (*dial.Load())(ctx, addr) },
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var attempts []producer.Attempt
			p, err := producer.New(c, producer.Options{OnAttempt: func(a producer.Attempt) { attempts = append(attempts, a) }})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			start := time.Now()
			r, err := p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if attempts[0].Class != transport.Transient || attempts[0].Delay != 0 {
				t.Errorf("the connection that was closed is %+v", attempts[0])
			}
			if !restarted {
				e, ok := errors.AsType[*producer.SendError](err)
				if !ok || e.Attempts != producer.DefaultMaxAttempts || !e.MaybeStored || !errors.Is(err, tidegate.ErrUnavailable) {
					t.Errorf("while there is none: %+v, %v", r, err)
				}
				return
			}
			if info, e := next.Topic("orders"); err != nil || e != nil || info.Messages != 1 || r.Attempts < 2 || time.Since(start) > 2*time.Second {
				t.Errorf("%+v, %v after %v; the node has %d messages, %v", r, err, time.Since(start), info.Messages, e)
			}
		})
	}
}

// A consumer that is told nothing takes the intervals of its group's metadata.
//
// RocketMQ: consumption retry: "Specified in the metadata when a consumer group is created.
// Unordered messages: incremental Ordered messages: fixed"
// RocketMQ: consumption retry: "You can increase the interval between retries to prevent frequent
// retries"
func TestIntervalsAreTheGroups(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		config broker.GroupConfig
		want   []time.Duration
	}{
		{broker.GroupConfig{MaxAttempts: 4, Retry: backoff.Steps{5 * s, 50 * s}}, []time.Duration{5 * s, 50 * s, 50 * s}},
		{broker.GroupConfig{MaxAttempts: 4, FIFO: true, FIFORetryInterval: broker.Duration(7 * s)}, []time.Duration{7 * s, 7 * s, 7 * s}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			topic, m := broker.TopicConfig{}, &tidegate.Message{Topic: "orders", Body: []byte("x")}
			if c.config.FIFO {
				topic.Type, m.MessageGroup = broker.TopicFIFO, "a"
			}
			b.CreateTopic("orders", topic)
			b.CreateGroup("g", c.config)
			mustSend(t, newProducer(t, b, producer.Options{}), m)
			var gaps []time.Duration
			var last time.Time
			stop := consume(t, b, consumer.Subscription{Group: "g", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
				if !last.IsZero() {
					gaps = append(gaps, time.Since(last))
				}
				last = time.Now()
				return errors.New("out of stock")
			})
			<-time.After(time.Hour)
			stop()
			if !slices.Equal(gaps, c.want) {
				t.Errorf("%+v: delivered again after %v, want %v", c.config, gaps, c.want)
			}
		})
	}
}
