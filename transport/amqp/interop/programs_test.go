package interop

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
)

var errHandler = errors.New("no such customer")

// consume runs a push consumer until the function that it returns is called.
func consume(t testing.TB, c *amqp.Client, sub consumer.Subscription, h consumer.Handler, o consumer.PushOptions) (stop func()) {
	t.Helper()
	o.LongPolling = time.Second
	p, err := consumer.NewPush(c, sub, h, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func sends(t testing.TB, c *amqp.Client, o producer.Options) *producer.Producer {
	t.Helper()
	p, err := producer.New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// The real producer and consumer: two failures, delayed by the consumer's schedule, and then a dead
// letter with its reason.
func TestRetriesAndDeadLetter(t *testing.T) {
	s, a := server(t)
	topic := "programs-" + run
	if err := errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "programs")); err != nil {
		t.Fatal(err)
	}
	c := client(t, s.Address(), amqp.Options{CopyRetries: true, RequestTimeout: requestTimeout, Groups: func(string, string) transport.ConsumerSettings {
		return transport.ConsumerSettings{MaxAttempts: 3}
	}})
	const delay = 500 * time.Millisecond
	type attempt struct {
		at time.Time
		n  int
	}
	attempts := make(chan attempt, 10)
	stop := consume(t, c, consumer.Subscription{Group: "programs", Topic: topic, Retry: backoff.Steps{delay, 2 * delay}},
		func(_ context.Context, d *tidegate.Delivery) error {
			attempts <- attempt{time.Now(), d.Attempt}
			return errHandler
		}, consumer.PushOptions{})
	receipt, err := sends(t, c, producer.Options{}).Send(t.Context(), &tidegate.Message{Topic: topic, Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	var last attempt
	for i := range 3 {
		got := <-attempts
		if pause := got.at.Sub(last.at); got.n != i+1 || i > 0 && pause < time.Duration(i)*delay {
			t.Errorf("attempt %d came after %v, want attempt %d after %v", got.n, pause, i+1, time.Duration(i)*delay)
		}
		last = got
	}
	letter := receive(t, c, transport.ReceiveRequest{
		Group: "undertaker", Topic: tidegate.DeadLetterTopic("programs"), Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Second,
	})
	want := tidegate.DeadLetter{Topic: topic, MessageID: receipt.MessageID, Queue: -1, Offset: -1, Group: "programs", Attempts: 3, Reason: errHandler.Error()}
	if got, ok := letter.DeadLetter(); !ok || got != want {
		t.Errorf("dead letter %+v, want %+v", got, want)
	}
	stop()
}

// A message that is sent again with the same ID, for example by a redrive, is retried and becomes a
// dead letter again: its copies are no duplicates of the earlier copies.
func TestCopiesOfARepeatedID(t *testing.T) {
	s, a := server(t)
	topic := "redriven-" + run
	if err := errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "redriven")); err != nil {
		t.Fatal(err)
	}
	c := client(t, s.Address(), amqp.Options{CopyRetries: true, RequestTimeout: requestTimeout})
	r := transport.ReceiveRequest{Group: "redriven", Topic: topic, Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Second}
	m := message(topic, 1)
	for redrives := range 3 {
		if redrives > 0 {
			m.Properties = map[string]string{"DLQ_REDRIVES": itoa(redrives)}
		}
		if err := send(t.Context(), c, m); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Settle(t.Context(), receive(t, c, r), transport.Verdict{Kind: transport.Retry, Reason: "first"}); err != nil {
			t.Fatal(err)
		}
		again := receive(t, c, r)
		if again.Attempt != 2 {
			t.Errorf("attempt %d, want 2", again.Attempt)
		}
		if _, err := c.Settle(t.Context(), again, transport.Verdict{Kind: transport.DeadLetter, Reason: "hopeless"}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := a.do(t.Context(), "queue.redriven.DLQ", "countMessages"); err != nil || n != "[3]" {
		t.Errorf("there are %s dead letters, %v; want 3", n, err)
	}
}

// A producer waits out a throttle: the sends succeed once there is space.
func TestProducerWaitsForSpace(t *testing.T) {
	s, a := server(t)
	topic := "fail.programs-" + run
	if err := a.createGroup(t.Context(), topic, "billing"); err != nil {
		t.Fatal(err)
	}
	c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	var mu sync.Mutex
	throttled := 0
	p := sends(t, c, producer.Options{MaxThrottleTime: soon, Backoff: backoff.Steps{100 * time.Millisecond}, OnAttempt: func(at producer.Attempt) {
		if errors.Is(at.Err, tidegate.ErrThrottled) {
			mu.Lock()
			throttled++
			mu.Unlock()
		}
	}})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := p.Send(t.Context(), message(topic, 2048)); err != nil {
				t.Error(err)
			}
		})
	}
	for { // until the address is full
		mu.Lock()
		n := throttled
		mu.Unlock()
		if n > 0 {
			break
		}
		wait(t, 10*time.Millisecond)
	}
	seen := map[string]bool{}
	enough := make(chan struct{})
	consume(t, c, consumer.Subscription{Group: "billing", Topic: topic}, func(_ context.Context, d *tidegate.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if seen[d.ID] = true; len(seen) == 100 {
			close(enough)
		}
		return nil
	}, consumer.PushOptions{})
	wg.Wait()
	select {
	case <-enough:
	case <-time.After(soon):
		t.Errorf("%d of 100 messages were received", len(seen))
	}
	t.Logf("%d attempts were throttled", throttled)
}

func wait(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
