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
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

var errHandler = errors.New("no such customer")

// consume runs a push consumer until the function that it returns is called.
func consume(t testing.TB, c *amqp.Client, sub consumer.Subscription, h consumer.Handler, o consumer.PushOptions) (stop func()) {
	t.Helper()
	o.LongPolling = time.Second
	p := assert.Value(consumer.NewPush(c, sub, h, o))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done, "Run")
	})
	t.Cleanup(stop)
	return stop
}

func sends(t testing.TB, c *amqp.Client, o producer.Options) *producer.Producer {
	t.Helper()
	p := assert.Value(producer.New(c, o))(t)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// The real producer and consumer: two failures, delayed by the consumer's schedule, and then a dead
// letter with its reason.
func TestRetriesAndDeadLetter(t *testing.T) {
	s, a := server(t)
	topic := "programs-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "programs")))
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
	receipt := assert.Value(sends(t, c, producer.Options{}).Send(t.Context(), &tidegate.Message{Topic: topic, Body: []byte("x")}))(t)
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
	got, ok := letter.DeadLetter()
	assert.That(t, ok && got == want, "dead letter %+v, want %+v", got, want)
	stop()
}

// A message that is sent again with the same ID, for example by a redrive, is retried and becomes a
// dead letter again: its copies are no duplicates of the earlier copies.
func TestCopiesOfARepeatedID(t *testing.T) {
	s, a := server(t)
	topic := "redriven-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "redriven")))
	c := client(t, s.Address(), amqp.Options{CopyRetries: true, RequestTimeout: requestTimeout})
	r := transport.ReceiveRequest{Group: "redriven", Topic: topic, Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Second}
	m := message(topic, 1)
	for redrives := range 3 {
		if redrives > 0 {
			m.Properties = map[string]string{"DLQ_REDRIVES": itoa(redrives)}
		}
		assert.Must(t, send(t.Context(), c, m))
		assert.Must(t, assert.Err(c.Settle(t.Context(), receive(t, c, r), transport.Verdict{Kind: transport.Retry, Reason: "first"})))
		again := receive(t, c, r)
		assert.Equal(t, "attempt", again.Attempt, 2)
		assert.Must(t, assert.Err(c.Settle(t.Context(), again, transport.Verdict{Kind: transport.DeadLetter, Reason: "hopeless"})))
	}
	n, err := a.do(t.Context(), "queue.redriven.DLQ", "countMessages")
	assert.That(t, err == nil && n == "[3]", "there are %s dead letters, %v; want 3", n, err)
}

// A producer waits out a throttle: the sends succeed once there is space.
func TestProducerWaitsForSpace(t *testing.T) {
	s, a := server(t)
	topic := "fail.programs-" + run
	assert.Must(t, a.createGroup(t.Context(), topic, "billing"))
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
		wg.Go(func() { assert.NoError(t, assert.Err(p.Send(t.Context(), message(topic, 2048)))) })
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

// A ledger of a server that is killed under load, with and without journal-datasync: no send fails,
// and every accepted message is received. An acknowledgement has no response, so messages can be
// redelivered.
func TestKilledServerLosesNoAcceptedMessage(t *testing.T) {
	for _, datasync := range []string{"true", "false"} {
		t.Run("datasync "+datasync, func(t *testing.T) {
			s := start(t, artemis.Options{Properties: map[string]string{
				"journalDatasync": datasync, `addressSettings."#".autoCreateAddresses`: "true",
			}})
			r := servertest.Kill(t, servertest.Victim{
				Sender: clientOf(t, s.Address()), Receiver: clientOf(t, s.Address()), Topic: "orders", Group: "billing", Kill: s.Kill, Restart: s.Restart,
			})
			t.Logf("journal-datasync %s: %d messages accepted and received, %d extra deliveries; %d attempts ended with their connection",
				datasync, r.Accepted, r.Extra, r.InFlight)
		})
	}
}
