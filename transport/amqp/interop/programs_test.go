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

// kills is the number of times that the server is killed, and between the number of messages that
// it accepts before each.
const (
	kills   = 2
	between = 500
)

// A ledger of a server that is killed under load, with and without journal-datasync: no send fails,
// and every accepted message is received. An acknowledgement has no response, so messages can be
// redelivered.
func TestKilledServerLosesNoAcceptedMessage(t *testing.T) {
	for _, datasync := range []string{"true", "false"} {
		t.Run("datasync "+datasync, func(t *testing.T) { killUnderLoad(t, datasync) })
	}
}

// A ledger counts the messages of a test.
type ledger struct {
	mu       sync.Mutex
	accepted map[string]bool
	received map[string]int // deliveries
	lost     int            // attempts that ended with their connection
	changed  chan struct{}  // of one element: something was accepted or received
}

// update changes the ledger.
func (l *ledger) update(f func()) {
	l.mu.Lock()
	f()
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// await waits until done returns true. Only the test's own deadline ends it earlier.
func (l *ledger) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for {
		l.mu.Lock()
		ok := done()
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-l.changed:
		case <-time.After(2 * time.Minute):
			t.Fatalf("nothing has changed for 2 min: %s", what)
		}
	}
}

// missing returns the number of accepted messages that were not received. The lock is held.
func (l *ledger) missing() int {
	n := 0
	for id := range l.accepted {
		if l.received[id] == 0 {
			n++
		}
	}
	return n
}

func killUnderLoad(t *testing.T, datasync string) {
	s := start(t, artemis.Options{Properties: map[string]string{
		"journalDatasync": datasync, `addressSettings."#".autoCreateAddresses`: "true",
	}})
	l := &ledger{accepted: map[string]bool{}, received: map[string]int{}, changed: make(chan struct{}, 1)}
	consume(t, clientOf(t, s.Address()), consumer.Subscription{Group: "billing", Topic: "orders"},
		func(_ context.Context, d *tidegate.Delivery) error {
			l.update(func() { l.received[d.ID]++ })
			return nil
		}, consumer.PushOptions{})
	// Every kill can cost a message one of its three attempts. Times that a busy machine exceeds do
	// not count as failures.
	p := sends(t, client(t, s.Address(), amqp.Options{}), producer.Options{
		AttemptTimeout: 30 * time.Second, MaxThrottles: producer.UntilContextEnds,
		OnAttempt: func(a producer.Attempt) {
			if e, ok := errors.AsType[*tidegate.Error](a.Err); ok && e.MaybeStored {
				l.update(func() { l.lost++ })
			}
		},
	})
	send := func(m *tidegate.Message) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		_, err := p.Send(ctx, m)
		return err
	}
	// Artemis discards messages before the group's first receive, which creates its queue: they are
	// not in the ledger.
	for begun := false; !begun; {
		assert.Must(t, send(message("orders", 1)))
		wait(t, 50*time.Millisecond)
		l.update(func() { begun = len(l.received) > 0 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 16 {
		wg.Go(func() {
			for ctx.Err() == nil {
				m := message("orders", 500)
				if err := send(m); err != nil {
					t.Errorf("a send failed: %v", err)
					continue
				}
				l.update(func() { l.accepted[m.ID] = true })
			}
		})
	}
	more := func() {
		t.Helper()
		goal := 0
		l.update(func() { goal = len(l.accepted) + between })
		l.await(t, "the server accepts messages", func() bool { return len(l.accepted) >= goal })
	}
	for range kills {
		more()
		s.Kill()
		assert.Must(t, s.Restart(t.Context()))
	}
	more()
	cancel()
	wg.Wait()
	l.await(t, "every accepted message is received", func() bool { return l.missing() == 0 })
	l.mu.Lock()
	defer l.mu.Unlock()
	extra := 0
	for id := range l.accepted {
		extra += l.received[id] - 1
	}
	t.Logf("journal-datasync %s: %d messages accepted and received, %d extra deliveries; %d attempts ended with their connection",
		datasync, len(l.accepted), extra, l.lost)
	assert.That(t, l.lost != 0, "no message was in flight when the server was killed: this run shows nothing")
}
