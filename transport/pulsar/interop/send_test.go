package interop

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// quota creates a namespace with a backlog quota of 100 KiB, and a topic with a group in it.
func quota(t *testing.T, name, policy string) (ns string) {
	t.Helper()
	_, a := server(t)
	ns = namespace(t, name)
	assert.Must(t, errors.Join(
		a.SetBacklogQuota(t.Context(), ns, 100<<10, policy),
		a.CreateTopic(t.Context(), full(ns, "orders")),
		a.CreateSubscription(t.Context(), full(ns, "orders"), "billing"),
	))
	return ns
}

// A backlog quota throttles with both policies that refuse sends: nothing of a throttled send is
// stored. Sends are accepted again when there is space.
func TestQuotaThrottles(t *testing.T) {
	for _, policy := range []string{"producer_exception", "producer_request_hold"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s, _ := server(t)
			c := connect(t, s, pulsar.Options{Namespace: quota(t, strings.ReplaceAll(policy, "_", "-"), policy)})
			maybe, stored := map[string]bool{}, map[string]bool{}
			throttled := 0
			var first, refused time.Time
			for begin := time.Now(); throttled < 20; {
				assert.MustThat(t, time.Since(begin) < soon, "%d sends were accepted, and %d throttled", len(stored), throttled)
				m := message("orders", 2048)
				switch err := send(t.Context(), c, m); {
				case err == nil:
					assert.MustThat(t, throttled == 0, "a send was accepted while the quota was reached")
					stored[m.ID] = true
					continue
				case errors.Is(err, tidegate.ErrThrottled):
					if throttled++; refused.IsZero() {
						refused = time.Now()
					}
				default: // in flight when the server closed the producer
					e, ok := errors.AsType[*tidegate.Error](err)
					assert.MustThat(t, ok && e.MaybeStored && tidegate.Classify(err) == tidegate.ClassTransient, "%v", err)
					maybe[m.ID] = true
				}
				if first.IsZero() {
					first = time.Now()
				}
				wait(t, 100*time.Millisecond)
			}
			t.Logf("%d sends were accepted; the first refusal was a throttle %v after the server closed the producer", len(stored), refused.Sub(first))
			r := request("orders")
			got := map[string]bool{}
			for len(got) < len(stored) {
				d := receive(t, c, r)
				got[d.ID] = true
				assert.Must(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
				assert.MustThat(t, stored[d.ID] || maybe[d.ID], "%q was stored, whose send was throttled", d.ID)
				delete(maybe, d.ID)
			}
			free := time.Now()
			for send(t.Context(), c, message("orders", 2048)) != nil {
				assert.MustThat(t, time.Since(free) < soon, "no send is accepted, although there is space")
				wait(t, 100*time.Millisecond)
			}
			t.Logf("a send was accepted %v after there was space", time.Since(free))
		})
	}
}

// A quota that is reached before the first send of a client.
func TestQuotaReachedBefore(t *testing.T) {
	t.Parallel()
	s, a := server(t)
	ns := quota(t, "before", "producer_exception")
	filler := connect(t, s, pulsar.Options{Namespace: ns})
	for begin := time.Now(); !errors.Is(send(t.Context(), filler, message("orders", 2048)), tidegate.ErrThrottled); {
		assert.MustThat(t, time.Since(begin) < soon, "the quota is not reached")
	}
	kept := func() int64 {
		return assert.Value(a.TopicStats(t.Context(), full(ns, "orders")))(t).Subscriptions["billing"].Backlog
	}
	before := kept()
	c := connect(t, s, pulsar.Options{Namespace: ns})
	for range 3 {
		err := send(t.Context(), c, message("orders", 2048))
		assert.That(t, errors.Is(err, tidegate.ErrThrottled), "%v, want a throttle", err)
	}
	assert.Equal(t, "messages", kept(), before)
}

// A producer waits out a throttle: the sends succeed once there is space.
func TestProducerWaitsForSpace(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	c := connect(t, s, pulsar.Options{Namespace: quota(t, "space", "producer_exception")})
	throttled := make(chan struct{})
	var once sync.Once
	p := assert.Value(producer.New(c, producer.Options{MaxThrottleTime: soon, Backoff: backoff.Steps{100 * time.Millisecond}, OnAttempt: func(a producer.Attempt) {
		if errors.Is(a.Err, tidegate.ErrThrottled) {
			once.Do(func() { close(throttled) })
		}
	}}))(t)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	sent := make(chan error, 1)
	go func() {
		for after := 0; after < 20; { // sends after the first throttle; the server checks the quota at an interval
			_, err := p.Send(t.Context(), message("orders", 2048))
			select {
			case <-throttled:
				after++
			default:
			}
			if err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	select {
	case <-throttled:
	case err := <-sent:
		t.Fatalf("a send failed before the quota was reached: %v", err)
	}
	consume(t, c, consumer.Subscription{Group: "billing", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error { return nil })
	assert.NoError(t, <-sent)
}

// consume runs a push consumer until the end of the test.
func consume(t testing.TB, c *pulsar.Client, sub consumer.Subscription, h consumer.Handler) {
	t.Helper()
	consumeWith(t, c, sub, h, consumer.PushOptions{LongPolling: time.Second})
}

func consumeWith(t testing.TB, c *pulsar.Client, sub consumer.Subscription, h consumer.Handler, o consumer.PushOptions) {
	t.Helper()
	p := assert.Value(consumer.NewPush(c, sub, h, o))(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done, "Run")
	})
}

// Each fault of a topic is a clear error of its class, and the send is not stored.
func TestFaults(t *testing.T) {
	t.Parallel()
	s, a := server(t)
	ns := namespace(t, "faults")
	assert.Must(t, a.SetAutoTopicCreation(t.Context(), ns, false))
	c := connect(t, s, pulsar.Options{Namespace: ns, MaxBodySize: 100 << 20})
	want := func(what string, err error, code tidegate.Code, words string) {
		t.Helper()
		assert.That(t, codeOf(err) == code && strings.Contains(err.Error(), words), "%s: %v, want code %d and %q", what, err, code, words)
	}
	_, receiveMissing := c.Receive(t.Context(), request("missing"))
	_, queues := c.Queues(t.Context(), "billing", "missing")
	want("a send to a missing topic", send(t.Context(), c, message("missing", 1)), tidegate.CodeTopicNotFound, "does not exist")
	want("a receive from a missing topic", receiveMissing, tidegate.CodeTopicNotFound, "does not exist")
	want("Queues of a missing topic", queues, tidegate.CodeTopicNotFound, "does not exist")
	want("Ping of a missing topic", c.Ping(t.Context(), "missing"), tidegate.CodeTopicNotFound, "does not exist")
	assert.NoError(t, c.Ping(t.Context()))
	status, ok := errors.AsType[*standalone.StatusError](assert.Err(a.TopicStats(t.Context(), full(ns, "missing"))))
	assert.That(t, ok && status.Status == http.StatusNotFound, "the missing topic: %v, want that it does not exist", status)

	assert.Must(t, a.CreateTopic(t.Context(), full(ns, "orders")))
	_, noLetters := c.Receive(t.Context(), request("orders"))
	want("a receive without a dead letter topic", noLetters, tidegate.CodeNotFound, "orders-billing-DLQ with the subscription dead-letters")
	assert.Must(t, a.CreateTopic(t.Context(), full(ns, "orders-billing-DLQ")))
	_, noRetries := c.Receive(t.Context(), request("orders"))
	want("a receive without a retry topic", noRetries, tidegate.CodeNotFound, "create the topic "+full(ns, "orders-billing-RETRY"))
	assert.Must(t, a.CreateTopic(t.Context(), full(ns, "orders-billing-RETRY")))
	nothing(t, c, request("orders"))

	const most = 5 << 20 // maxMessageSize
	want("a body above the limit", send(t.Context(), c, message("orders", most+1)), tidegate.CodeMessageBodyTooLarge, "maxMessageSize")
	want("a body at the limit, with properties above it", send(t.Context(), c, message("orders", most)), tidegate.CodeMessageBodyTooLarge, "maxMessageSize")
	assert.NoError(t, send(t.Context(), c, message("orders", most-1000)))
	d := receive(t, c, request("orders"))
	assert.That(t, len(d.Body) == most-1000, "received %d bytes", len(d.Body))
	nothing(t, c, request("orders"))

	elsewhere := connect(t, s, pulsar.Options{Namespace: "public/nowhere"})
	want("a missing namespace", send(t.Context(), elsewhere, message("orders", 1)), tidegate.CodeTopicNotFound, "does not exist")
	assert.Must(t, a.Terminate(t.Context(), full(ns, "orders")))
	for range 2 { // the first one may be in flight
		if err := send(t.Context(), c, message("orders", 1)); tidegate.Classify(err) == tidegate.ClassPermanent {
			want("a terminated topic", err, tidegate.CodeForbidden, "terminated")
			return
		}
	}
	t.Error("sends to a terminated topic do not fail")
}

// A server that is away at the start: sends fail with NotConnected, or wait for it. Nothing that
// ended is stored when it comes.
func TestServerAway(t *testing.T) {
	t.Parallel()
	s := start(t, standalone.Options{})
	assert.Must(t, errors.Join(s.Admin().CreateTopic(t.Context(), full("public/default", "orders")), s.Admin().CreateSubscription(t.Context(), full("public/default", "orders"), "billing")))
	s.Stop()
	c := connect(t, s, pulsar.Options{RequestTimeout: time.Second})
	err := send(t.Context(), c, message("orders", 1))
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.NotConnected && !e.MaybeStored, "%v, want NotConnected", err)
	waiting := message("orders", 1)
	sent := make(chan error, 1)
	go func() {
		err := send(transport.AwaitConnection(t.Context()), c, waiting)
		for begin := time.Now(); tidegate.Classify(err) == tidegate.ClassTransient && time.Since(begin) < soon; { // a server that has just started is slow
			err = send(transport.AwaitConnection(t.Context()), c, waiting)
		}
		sent <- err
	}()
	wait(t, *away)
	assert.Must(t, s.Restart(t.Context()))
	assert.NoError(t, <-sent)
	assert.Equal(t, "received", receive(t, c, request("orders")).ID, waiting.ID)
	nothing(t, c, request("orders"))
}

// The client alone stores a message later whose send has ended. The transport does not.
func TestNoLateMessages(t *testing.T) {
	t.Parallel()
	s := start(t, standalone.Options{})
	a := s.Admin()
	for _, topic := range []string{"bare", "ours"} {
		assert.Must(t, errors.Join(a.CreateTopic(t.Context(), full("public/default", topic)), a.CreateSubscription(t.Context(), full("public/default", topic), "billing")))
	}
	c := connect(t, s, pulsar.Options{})
	p := assert.Value(bare(t, s).CreateProducer(client.ProducerOptions{
		Topic: full("public/default", "bare"), DisableBatching: true,
		SendTimeout: time.Hour, // the restart of the server can take longer than the default of 30 s
	}))(t)
	first, last := message("ours", 1), message("ours", 1)
	assert.Must(t, send(t.Context(), c, first))
	s.Kill()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := p.Send(ctx, &client.ProducerMessage{Payload: []byte("late")})
		assert.That(t, err != nil && send(ctx, c, message("ours", 1)) != nil, "a send succeeded without a server")
		cancel()
	}
	assert.Must(t, s.Restart(t.Context()))
	assert.Must(t, send(transport.AwaitConnection(t.Context()), c, last))
	d := receive(t, c, request("bare"))
	assert.Equal(t, "the client alone has stored", string(d.Body), "late")
	for d := receive(t, c, request("ours")); d.ID != last.ID; d = receive(t, c, request("ours")) {
		assert.MustThat(t, d.ID == first.ID, "%q was stored, whose send had failed", d.ID)
	}
	nothing(t, c, request("ours"))
}
