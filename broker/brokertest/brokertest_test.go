package brokertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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
)

func newProducer(t testing.TB, b *brokertest.Broker, o producer.Options) *producer.Producer {
	t.Helper()
	p, err := producer.New(b.Client(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func mustSend(t testing.TB, p *producer.Producer, msgs ...*tidegate.Message) {
	t.Helper()
	for _, m := range msgs {
		if _, err := p.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

// consume runs a push consumer until stop is called.
func consume(t testing.TB, b *brokertest.Broker, sub consumer.Subscription, h consumer.Handler) (stop func()) {
	t.Helper()
	c, err := consumer.NewPush(b.Client(), sub, h, consumer.PushOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the consumer ended with %v", err)
		}
	})
}

// A handler that always fails gets every delivery of the retry schedule through real gRPC: 17
// deliveries in 4 h 46 m, each at its exact time, then the dead letter.
// RocketMQ: consumption retry: "A message fails to be consumed. In this case, the consumer returns
// a failure status or the system throws an exception"
// RocketMQ: consumption retry: "Retry the message until the maximum number of retries is reached"
// RocketMQ: consumption retry: "You can consume messages in a dead-letter queue to restore your
// business"
func TestWholeLadderThroughGRPC(t *testing.T) {
	begin := time.Now()
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", broker.TopicConfig{})
		p := newProducer(t, b, producer.Options{})
		mustSend(t, p, &tidegate.Message{Topic: "orders", Body: []byte("poison"), Tag: "t", Keys: []string{"k"}, Properties: map[string]string{"a": "b"}})

		start := time.Now()
		var at []time.Duration
		stop := consume(t, b, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			at = append(at, time.Since(start))
			if d.Attempt != len(at) {
				t.Errorf("delivery %d has attempt %d", len(at), d.Attempt)
			}
			return errors.New("out of stock")
		})
		defer stop()

		dead, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "ops", Topic: tidegate.DeadLetterTopic("billing")}, consumer.SimpleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(6 * time.Hour)
		ds, err := dead.Receive(t.Context(), 10)
		if err != nil || len(ds) != 1 {
			t.Fatalf("%d dead letters, %v", len(ds), err)
		}
		d := ds[0]
		if err := dead.Ack(t.Context(), d); err != nil {
			t.Error(err)
		}

		want := time.Duration(0)
		ladder := backoff.RetryLadder()
		for i, got := range at {
			if got != want {
				t.Errorf("delivery %d was at %v, due at %v", i+1, got, want)
			}
			want += ladder.Delay(i)
		}
		if len(at) != 17 {
			t.Fatalf("%d deliveries, want 17", len(at))
		}
		if at[16].Round(time.Minute) != 4*time.Hour+46*time.Minute {
			t.Errorf("the last one was after %v, want 4h46m", at[16])
		}
		o, ok := d.DeadLetter()
		if !ok || o.Topic != "orders" || o.MessageID != d.ID || o.Group != "billing" || o.Attempts != 17 || o.Reason != "out of stock" {
			t.Errorf("the dead letter says %+v, %v", o, ok)
		}
		if string(d.Body) != "poison" || d.Tag != "t" || d.Keys[0] != "k" || d.Properties["a"] != "b" {
			t.Errorf("the dead letter lost something: %+v", d)
		}
	})
	took := time.Since(begin)
	t.Logf("4h46m took %v", took)
	if took > 15*time.Second { // 0.2 s on an idle machine, without the race detector
		t.Errorf("it took %v of real time: something waits for the real clock", took)
	}
}

// RocketMQ: sending retry and throttling: a throttled send is retried "at intervals specified in
// the exponential backoff"; here by a broker whose backlog is at its limit of 1 000.
// RocketMQ: sending retry and throttling: "Upon receiving these, the client retries the message
// according to the exponential backoff protocol"
// RocketMQ: sending retry and throttling: "When throttling is triggered, a producer client receives
// the following error message and an exception"
func TestThrottledProducerBacksOffAndArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", broker.TopicConfig{MaxBacklog: broker.Limit{Messages: 1000}})
		filler := b.Client()
		for range 10 {
			batch := make([]*tidegate.Message, 100)
			for i := range batch {
				batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}
			}
			for _, r := range filler.Send(t.Context(), batch) {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
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
		_, err := newProducer(t, b, opts).Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("impatient")})
		cancel()
		e, ok := errors.AsType[*producer.SendError](err)
		if !ok || e.Reason != producer.StopDeadline || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, tidegate.ErrThrottled) {
			t.Fatalf("got %v", err)
		}
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
				if err != nil {
					t.Error(err)
				}
				for _, d := range ds {
					if err := c.Ack(t.Context(), d); err != nil {
						t.Error(err)
					}
				}
			}
		})
		defer drain.Stop()
		receipt, err := newProducer(t, b, opts).Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("patient")})
		if err != nil {
			t.Fatal(err)
		}
		if receipt.Attempts < 4 || receipt.Attempts != len(attempts) {
			t.Errorf("%d attempts, %d observed", receipt.Attempts, len(attempts))
		}
		for i := 1; i < len(times); i++ {
			lo, hi := backoff.Default().Range(i - 1)
			if gap := times[i].Sub(times[i-1]); gap < lo || gap > hi {
				t.Errorf("gap %d is %v, not in Range(%d) = %v to %v", i, gap, i-1, lo, hi)
			}
		}
		for i, a := range attempts[:len(attempts)-1] {
			e, _ := errors.AsType[*tidegate.Error](a.Err)
			if a.Class != transport.Throttled || !errors.Is(a.Err, tidegate.ErrThrottled) || e.ReplyCode() != 530 || !strings.Contains(e.Error(), "TOO_MANY_REQUESTS") {
				t.Errorf("attempt %d: %v, %v", i+1, a.Class, a.Err)
			}
		}
	})
}

// The answer is lost after the message was stored: the producer sends again
// at once, with the same ID, and its user learns of one message.
//
// Demand 21: a lost response stores the message once.
//
// RocketMQ: sending retry and throttling: "the client does not know the processing result of the
// presumably failed message on the broker"
// RocketMQ: sending retry and throttling: "A network exception causes a connection failure or
// request timeout"
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", broker.TopicConfig{})
		var sent [][]string
		remove := b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			if call.Op != "SendMessage" {
				return next(ctx)
			}
			sent = append(sent, call.MessageIDs)
			if err := next(ctx); err != nil || len(sent) > 1 {
				return err
			}
			return brokertest.ErrConnectionLost
		})
		defer remove()
		p := newProducer(t, b, producer.Options{})
		r, err := p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})
		if err != nil || r.Attempts != 2 || len(sent) != 2 || sent[0][0] != sent[1][0] || sent[0][0] != r.MessageID {
			t.Errorf("receipt %+v, %v; sent %v", r, err, sent)
		}
		if info, err := b.Topic("orders"); err != nil || info.Messages != 1 {
			t.Errorf("stored %d times, %v; want once", info.Messages, err)
		}
	})
}

func TestInterceptDelaysRefusesAndThrottles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", broker.TopicConfig{})
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
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || !errors.Is(err, tidegate.ErrThrottled) || e.RetryAfter != 7*time.Second {
			t.Errorf("throttled: %#v", err)
		}
		_, err = with(func(context.Context, server.Call, func(context.Context) error) error {
			return &tidegate.Error{Code: tidegate.CodeForbidden, Message: "not today"}
		})
		if !errors.Is(err, tidegate.ErrForbidden) {
			t.Errorf("refused: %v", err)
		}
		took, err := with(func(context.Context, server.Call, func(context.Context) error) error { return brokertest.ErrNoAnswer })
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || !e.MaybeStored || took != 3*time.Second {
			t.Errorf("no answer: %v after %v", err, took)
		}
		if err := send(); err != nil {
			t.Errorf("after everything was removed: %v", err)
		}
	})
}

// 200 starts and stops, with a producer and a consumer at work, leave no
// goroutine: a bubble does not end while one is left.
//
// Demand 66: 200 starts and stops leave nothing.
func TestStartsAndStopsLeaveNothing(t *testing.T) {
	for i := range 200 {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", broker.TopicConfig{Queues: 1})
			p := newProducer(t, b, producer.Options{})
			got := make(chan struct{})
			stop := consume(t, b, consumer.Subscription{Group: "g", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
				got <- struct{}{}
				return nil
			})
			mustSend(t, p, &tidegate.Message{Topic: "orders", Body: fmt.Append(nil, i)})
			<-got
			stop()
			if i%2 == 0 {
				b.Close() // before its clients
			}
		})
	}
}

// BenchmarkNew is the time until a test has a broker, and has ended it.
func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		tb := &stand{TB: b}
		b.StartTimer()
		brokertest.New(tb)
		b.StopTimer()
		for _, f := range tb.cleanups {
			f()
		}
		b.StartTimer()
	}
}

// A stand runs cleanups when it is told to.
type stand struct {
	testing.TB
	cleanups []func()
}

func (s *stand) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }
