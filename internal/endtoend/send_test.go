package endtoend

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// RocketMQ: sending retry and throttling: a throttled send is retried "at intervals specified in
// the exponential backoff"; here by a broker whose backlog is at its limit of 1 000.
// RocketMQ: sending retry and throttling: "Upon receiving these, the client retries the message
// according to the exponential backoff protocol"
// RocketMQ: sending retry and throttling: "When throttling is triggered, a producer client receives
// the following error message and an exception"
func TestThrottledProducerBacksOffAndArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{MaxBacklog: settings.Limit{Messages: 1000}})
		filler := b.Client()
		for range 10 {
			batch := make([]*tidegate.Message, 100)
			for i := range batch {
				batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}
			}
			for _, r := range filler.Send(t.Context(), batch) {
				assert.MustThat(t, r.Err == nil, "%v", r.Err)
			}
		}

		var mu sync.Mutex
		var attempts []producer.Attempt
		var times []time.Time
		opts := producer.Options{MaxAttempts: 100, OnAttempt: func(a producer.Attempt) {
			mu.Lock()
			defer mu.Unlock()
			attempts, times = append(attempts, a), append(times, time.Now())
		}}

		// With a deadline, the call ends when the next wait would be too long for it.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		start := time.Now()
		_, err := NewProducer(t, b, opts).Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("impatient")})
		cancel()
		e, ok := errors.AsType[*producer.SendError](err)
		assert.MustThat(t, ok && e.Reason == producer.StopDeadline && errors.Is(err, context.DeadlineExceeded) && errors.Is(err, tidegate.ErrThrottled), "got %v", err)
		if took := time.Since(start); took+e.Remaining != 10*time.Second || e.Needed <= e.Remaining {
			t.Errorf("the call ended after %v, its ctx after 10s: %+v", took, e)
		}

		mu.Lock()
		attempts, times = nil, nil
		mu.Unlock()
		drain := time.AfterFunc(8*time.Second, func() {
			c, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "g", Topic: "orders"}, consumer.SimpleOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			for range 10 {
				ds, err := c.Receive(t.Context(), 32)
				assert.NoError(t, err)
				for _, d := range ds {
					assert.NoError(t, c.Ack(t.Context(), d))
				}
			}
		})
		defer drain.Stop()
		receipt := assert.Value(NewProducer(t, b, opts).Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("patient")}))(t)
		assert.That(t, receipt.Attempts >= 4 && receipt.Attempts == len(attempts), "%d attempts, %d observed", receipt.Attempts, len(attempts))
		for i := 1; i < len(times); i++ {
			lo, hi := backoff.Default().Range(i - 1)
			gap := times[i].Sub(times[i-1])
			assert.That(t, gap >= lo && gap <= hi, "gap %d is %v, not in Range(%d) = %v to %v", i, gap, i-1, lo, hi)
		}
		for i, a := range attempts[:len(attempts)-1] {
			e, _ := errors.AsType[*tidegate.Error](a.Err)
			if a.Class != tidegate.ClassThrottled || !errors.Is(a.Err, tidegate.ErrThrottled) || e.ReplyCode() != 530 || !strings.Contains(e.Error(), "TOO_MANY_REQUESTS") {
				t.Errorf("attempt %d: %v, %v", i+1, a.Class, a.Err)
			}
		}
	})
}

// The node ends before it responds to a send. The producer sends the message again at once to the
// node that replaces it. Without a replacement the producer uses all its attempts and reports the
// failure.
//
// RocketMQ: sending retry and throttling: "The connection is closed because the broker node is shut
// down or being restarted"
// RocketMQ: sending retry and throttling: "Apache RocketMQ provides built-in logic in the client
// SDK to retry failed requests until the requests succeed"
func TestSendSurvivesARestart(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			old, next := brokertest.New(t), brokertest.New(t)
			old.CreateTopic("orders", settings.Topic{})
			next.CreateTopic("orders", settings.Topic{})
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
			assert.Must(t, err)
			defer c.Close()
			var attempts []producer.Attempt
			p := assert.Value(producer.New(c, producer.Options{OnAttempt: func(a producer.Attempt) { attempts = append(attempts, a) }}))(t)
			defer p.Close()
			start := time.Now()
			r, err := p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})
			assert.NoError(t, <-closed)
			if attempts[0].Class != tidegate.ClassTransient || attempts[0].Delay != 0 {
				t.Errorf("the connection that was closed is %+v", attempts[0])
			}
			if !restarted {
				e, ok := errors.AsType[*producer.SendError](err)
				took := time.Since(start)
				if !ok || !e.MaybeStored || !errors.Is(err, tidegate.ErrUnavailable) || took < 2*time.Minute || took > 2*time.Minute+5*time.Second {
					t.Errorf("while there is none: %+v, %v after %v; want an error after 2 min", r, err, took)
				}
				return
			}
			if info, e := next.Topic("orders"); err != nil || e != nil || info.StoredMessages != 1 || r.Attempts < 2 || time.Since(start) > 2*time.Second {
				t.Errorf("%+v, %v after %v; the node has %d messages, %v", r, err, time.Since(start), info.StoredMessages, e)
			}
		})
	}
}
