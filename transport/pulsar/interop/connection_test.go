package interop

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// stored returns how often each message is stored in a topic, by its ID. The subscription audit,
// which receives nothing else, has all of them.
func stored(t *testing.T, s *standalone.Server, topic string) map[string]int {
	t.Helper()
	stats := assert.Value(s.Admin().TopicStats(t.Context(), full("public/default", topic)))(t)
	c := assert.Value(bare(t, s).Subscribe(client.ConsumerOptions{Topic: full("public/default", topic), SubscriptionName: "audit", ReceiverQueueSize: 1000}))(t)
	defer c.Close()
	ids := map[string]int{}
	for range stats.Subscriptions["audit"].Backlog {
		m := assert.Value(c.Receive(t.Context()))(t)
		ids[m.Properties()["UNIQ_KEY"]]++
	}
	return ids
}

// backlog returns the number of messages of the group billing that are not acknowledged.
func backlog(t *testing.T, s *standalone.Server, topic string) int64 {
	t.Helper()
	return assert.Value(s.Admin().TopicStats(t.Context(), full("public/default", topic)))(t).Subscriptions["billing"].Backlog
}

// audited creates the topic orders with the subscriptions billing and audit.
func audited(t *testing.T, s *standalone.Server) {
	t.Helper()
	a, topic := s.Admin(), full("public/default", "orders")
	assert.Must(t, errors.Join(a.CreateTopic(t.Context(), topic), a.CreateSubscription(t.Context(), topic, "billing"), a.CreateSubscription(t.Context(), topic, "audit")))
}

// Connections are cut under load: no send fails, every accepted message is received, and a message
// is stored twice only if an attempt may have stored it.
func TestConnectionIsCut(t *testing.T) {
	t.Parallel()
	s, n := behind(t)
	audited(t, s)
	r := servertest.Kill(t, servertest.Victim{
		Sender: over(t, n, pulsar.Options{}), Receiver: over(t, n, pulsar.Options{}), Topic: "orders", Group: "billing",
		Kill: func() { n.with(func(n *network) { n.down = true }); n.cut() },
		Restart: func(context.Context) error {
			wait(t, 2*time.Second)
			n.with(func(n *network) { n.down = false })
			return nil
		},
	})
	copies := 0
	for _, times := range stored(t, s, "orders") {
		copies += times - 1
	}
	assert.That(t, copies <= r.InFlight, "%d messages are stored again, by %d attempts that may have been stored", copies, r.InFlight)
	t.Logf("%d messages accepted and received, %d of them stored again by %d attempts without a response, %d extra deliveries", r.Accepted, copies, r.InFlight, r.Extra)
}

// A slow network: sends succeed, and the leases of handlers that take longer than the invisible
// duration hold.
func TestSlowNetwork(t *testing.T) {
	t.Parallel()
	s, n := behind(t)
	audited(t, s)
	n.with(func(n *network) { n.delay, n.rate = 100*time.Millisecond, 64<<10 })
	c := over(t, n, pulsar.Options{})
	p := assert.Value(producer.New(c, producer.Options{AttemptTimeout: requestTimeout}))(t)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	const messages, size = 40, 4096
	begin := time.Now()
	var wg sync.WaitGroup
	for range messages {
		wg.Go(func() { assert.NoError(t, assert.Err(p.Send(t.Context(), message("orders", size)))) })
	}
	wg.Wait()
	took := time.Since(begin)
	least := messages * size * time.Second / (64 << 10)
	assert.That(t, took >= least, "the sends took %v: the network is not slow", took)
	t.Logf("%d sends of %d bytes took %v, %v of it for the bytes", messages, size, took, least)

	outcomes := make(chan consumer.Outcome, messages)
	consumeWith(t, c, consumer.Subscription{Group: "billing", Topic: "orders"}, func(ctx context.Context, _ *tidegate.Delivery) error {
		select {
		case <-time.After(3 * time.Second):
			return nil
		case <-ctx.Done(): // the lease is lost
			return context.Cause(ctx)
		}
	}, consumer.PushOptions{LongPolling: time.Second, InvisibleDuration: time.Second, Concurrency: messages, OnDelivery: func(o consumer.Outcome) { outcomes <- o }})
	handled := map[string]bool{}
	for range messages {
		o := <-outcomes
		assert.That(t, o.Err == nil && o.Delivery.Attempt == 1 && !handled[o.Delivery.ID], "attempt %d of %q: %v", o.Delivery.Attempt, o.Delivery.ID, o.Err)
		handled[o.Delivery.ID] = true
	}
	assert.Equal(t, "messages that are not acknowledged", backlog(t, s, "orders"), 0)
}

// A network in which packets vanish: each call ends with its ctx. Once packets arrive again, the
// client replaces the connections after Options.IdleTimeout.
func TestSilentNetwork(t *testing.T) {
	t.Parallel()
	s, n := behind(t)
	audited(t, s)
	c := over(t, n, pulsar.Options{IdleTimeout: 2 * time.Second})
	first := message("orders", 1)
	assert.Must(t, send(t.Context(), c, first))
	d := receive(t, c, request("orders"))
	cut := over(t, n, pulsar.Options{IdleTimeout: 2 * time.Minute})
	r := request("orders")
	r.Group = "shipping"
	unconfirmed := receive(t, cut, r)
	const patience, late = 500 * time.Millisecond, 3 * time.Second // on a busy machine
	n.silence()
	for name, call := range map[string]func(context.Context) error{
		"Send":         func(ctx context.Context) error { return send(ctx, c, message("orders", 1)) },
		"waiting Send": func(ctx context.Context) error { return send(transport.AwaitConnection(ctx), c, message("orders", 1)) },
		"Ack":          func(ctx context.Context) error { return c.Ack(ctx, []*tidegate.Delivery{d})[0] },
		"Ping":         func(ctx context.Context) error { return c.Ping(ctx, "orders") },
		"Receive from another topic": func(ctx context.Context) error {
			return assert.Err(c.Receive(ctx, request("others")))
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		begin := time.Now()
		err := call(ctx)
		took := time.Since(begin)
		cancel()
		assert.That(t, err != nil && tidegate.Classify(err) == tidegate.ClassTransient, "%s: %v, want a transient error", name, err)
		assert.That(t, took < late, "%s: it ended %v after its ctx", name, took-patience)
		t.Logf("%s: after %v: %v", name, took.Round(time.Millisecond), err)
	}
	acked := make(chan error, 1)
	go func() { acked <- cut.Ack(t.Context(), []*tidegate.Delivery{unconfirmed})[0] }()
	wait(t, time.Second) // the client writes it
	n.cut()
	err := <-acked
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.MaybeStored && !e.NotConnected && tidegate.Classify(err) == tidegate.ClassTransient && strings.Contains(err.Error(), "connection closed"),
		"an acknowledgement whose connection is cut: %v", err)
	n.speak()
	last := message("orders", 1)
	begin := time.Now()
	for {
		err := send(transport.AwaitConnection(t.Context()), c, last)
		if err == nil {
			break
		}
		assert.MustThat(t, tidegate.Classify(err) == tidegate.ClassTransient && time.Since(begin) < soon, "%v", err)
	}
	t.Logf("a send succeeded %v after packets arrive again", time.Since(begin).Round(time.Millisecond))
	for received := ""; received != last.ID; {
		d := receive(t, c, request("orders"))
		received = d.ID
		assert.That(t, received == last.ID || received == first.ID, "%q was stored, whose send has ended", received)
		assert.Must(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
	}
	all := stored(t, s, "orders")
	assert.That(t, len(all) == 2 && all[first.ID] == 1 && all[last.ID] >= 1, "stored: %v", all)
}
