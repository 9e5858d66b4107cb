//go:build unix

package interop

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// topicOf creates a topic with the group billing.
func topicOf(t testing.TB, name string) string {
	t.Helper()
	_, a := server(t)
	name += "-" + unique()
	assert.Must(t, errors.Join(a.CreateTopic(t.Context(), full("public/default", name)), a.CreateSubscription(t.Context(), full("public/default", name), "billing")))
	return name
}

var errHandler = errors.New("no such customer")

// The real consumer: two failures, delayed by its schedule, and then a dead letter with its reason,
// which is kept although no one has received from the dead letters before.
func TestRetriesAndDeadLetter(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "programs")
	c := connect(t, s, pulsar.Options{Groups: func(string, string) transport.ConsumerSettings {
		return transport.ConsumerSettings{MaxAttempts: 3}
	}})
	const delay = 500 * time.Millisecond
	type attempt struct {
		at time.Time
		n  int
	}
	attempts := make(chan attempt, 10)
	consume(t, c, consumer.Subscription{Group: "billing", Topic: topic, Retry: backoff.Steps{delay, 2 * delay}}, func(_ context.Context, d *tidegate.Delivery) error {
		attempts <- attempt{time.Now(), d.Attempt}
		return errHandler
	})
	m := message(topic, 1)
	assert.Must(t, send(t.Context(), c, m))
	var last attempt
	for i := range 3 {
		got := <-attempts
		if pause := got.at.Sub(last.at); got.n != i+1 || i > 0 && pause < time.Duration(i)*delay {
			t.Errorf("attempt %d came after %v, want attempt %d after %v", got.n, pause, i+1, time.Duration(i)*delay)
		}
		last = got
	}
	r := request(tidegate.DeadLetterTopic("billing"))
	for {
		letter := receive(t, c, r)
		assert.Must(t, c.Ack(t.Context(), []*tidegate.Delivery{letter})[0])
		if got, ok := letter.DeadLetter(); ok && got.Topic == topic { // the pattern also finds those of other tests
			want := tidegate.DeadLetter{Topic: topic, MessageID: m.ID, Queue: -1, Offset: -1, Group: "billing", Attempts: 3, Reason: errHandler.Error()}
			assert.That(t, got == want && letter.Attempt == 1, "dead letter %+v in attempt %d, want %+v in attempt 1", got, letter.Attempt, want)
			return
		}
	}
}

// A retried message has the properties of the TDMQ document, and its ID in the form that the
// document shows, so that other clients of the subscription understand it.
func TestPropertiesOfRetries(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "properties")
	c := connect(t, s, pulsar.Options{})
	assert.Must(t, send(t.Context(), c, message(topic, 1)))
	d := receive(t, c, request(topic))
	_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second})
	assert.Must(t, err)
	assert.NoError(t, c.Close()) // it would take the message
	retry := full("public/default", topic+"-billing-RETRY")
	other := assert.Value(bare(t, s).Subscribe(client.ConsumerOptions{Topic: retry, SubscriptionName: "billing", Type: client.Shared}))(t)
	defer other.Close()
	m := assert.Value(other.Receive(t.Context()))(t)
	p := m.Properties()
	var ledger, entry, partition int
	n, err := fmt.Sscanf(p["ORIGIN_MESSAGE_ID"], "%d:%d:%d", &ledger, &entry, &partition)
	assert.That(t, n == 3 && err == nil, "ORIGIN_MESSAGE_ID is %q", p["ORIGIN_MESSAGE_ID"])
	assert.That(t, p["REAL_TOPIC"] == full("public/default", topic) && p["RETRY_TOPIC"] == retry && p["RECONSUMETIMES"] == "1", "properties %v", p)
}

// A negative acknowledgement delivers the message itself again: after its delay, as the next
// attempt, and to another consumer if this one ends before.
func TestNegativeAck(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "negative")
	c := connect(t, s, pulsar.Options{})
	assert.Must(t, send(t.Context(), c, message(topic, 1)))
	const delay = 2 * time.Second
	d := receive(t, c, request(topic))
	begin := time.Now()
	_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.NegativeAck, Delay: delay})
	assert.Must(t, err)
	again := receive(t, c, request(topic))
	took := time.Since(begin)
	assert.That(t, took >= delay && again.Attempt == 2, "attempt %d came after %v, want attempt 2 after %v", again.Attempt, took, delay)
	t.Logf("it came again after %v of %v", took, delay)
	_, err = c.Settle(t.Context(), again, transport.Verdict{Kind: transport.NegativeAck, Delay: time.Hour})
	assert.Must(t, err)
	assert.NoError(t, c.Close())
	receive(t, connect(t, s, pulsar.Options{}), request(topic))
}

// A delayed message does not come before its time, although the server delivers it up to 1 s before.
func TestDeliveryTime(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "delayed")
	c := connect(t, s, pulsar.Options{})
	for _, delay := range []time.Duration{500 * time.Millisecond, 2500 * time.Millisecond} {
		m := message(topic, 1)
		m.DeliverAt = time.Now().Add(delay)
		assert.Must(t, send(t.Context(), c, m))
		d := receive(t, c, request(topic))
		late := time.Since(m.DeliverAt)
		assert.That(t, late >= -2*time.Millisecond, "the message came %v before its delivery time", -late)
		t.Logf("a delay of %v: the message came %v after its delivery time", delay, late)
		assert.Must(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
	}
}

// Messages that were sent before the first receive come from the storage of the server and not from
// its cache, whatever their size.
func TestBacklogOfLargeMessages(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "backlog")
	c := connect(t, s, pulsar.Options{})
	sizes := []int{1, 16 << 10, 20 << 10, 4 << 20}
	for _, size := range sizes {
		assert.Must(t, send(t.Context(), c, message(topic, size)))
	}
	for _, size := range sizes {
		d := receive(t, c, request(topic))
		assert.Equal(t, "bytes", len(d.Body), size)
		assert.Must(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
	}
}

// The messages that a consumer has not settled come to another one when it ends, without a counted
// attempt.
func TestUnsettledMessagesReturn(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "unsettled")
	c := connect(t, s, pulsar.Options{})
	for range 10 {
		assert.Must(t, send(t.Context(), c, message(topic, 1)))
	}
	receive(t, c, request(topic)) // the others are prefetched
	assert.NoError(t, c.Close())
	other := connect(t, s, pulsar.Options{})
	r := request(topic)
	r.Max = 10
	for got := 0; got < 10; {
		ds, err := other.Receive(t.Context(), r)
		assert.Must(t, err)
		for _, d := range ds {
			assert.Equal(t, "attempt", d.Attempt, 1)
			got++
		}
	}
}

// Acknowledgements are confirmed: none of them is lost when the client ends.
func TestAcknowledgementsAreConfirmed(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "acks")
	c := connect(t, s, pulsar.Options{})
	for range 200 {
		assert.Must(t, send(t.Context(), c, message(topic, 1)))
	}
	r := request(topic)
	r.Max = 32
	for got := 0; got < 200; {
		ds, err := c.Receive(t.Context(), r)
		assert.Must(t, err)
		for _, err := range c.Ack(t.Context(), ds) {
			assert.Must(t, err)
		}
		got += len(ds)
	}
	assert.NoError(t, c.Close())
	nothing(t, connect(t, s, pulsar.Options{}), request(topic))
}

// A batch comes again as a whole while one of its messages is not acknowledged.
func TestBatchComesAgain(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "batch")
	p := assert.Value(bare(t, s).CreateProducer(client.ProducerOptions{Topic: full("public/default", topic), BatchingMaxPublishDelay: time.Second}))(t)
	for i := range 5 {
		p.SendAsync(t.Context(), &client.ProducerMessage{Payload: strconv.AppendInt(nil, int64(i), 10)}, func(client.MessageID, *client.ProducerMessage, error) {})
	}
	assert.Must(t, p.FlushWithCtx(t.Context()))
	c := connect(t, s, pulsar.Options{})
	ids := map[string]bool{}
	for range 4 {
		d := receive(t, c, request(topic))
		ids[d.ID] = true
		assert.Must(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
	}
	assert.NoError(t, c.Close())
	other := connect(t, s, pulsar.Options{})
	for range 5 {
		d := receive(t, other, request(topic))
		ids[d.ID] = true
		assert.Must(t, other.Ack(t.Context(), []*tidegate.Delivery{d})[0])
	}
	assert.That(t, len(ids) == 5, "%d IDs of 5 messages: a foreign message has the same ID in each delivery", len(ids))
	nothing(t, other, request(topic))
}

// After the loss of its connection, the unloading of its topic and a restart of the server the
// transport works on.
func TestInterruptions(t *testing.T) {
	t.Parallel()
	s := start(t, standalone.Options{})
	topic := full("public/default", "orders")
	a := s.Admin()
	assert.Must(t, errors.Join(a.CreatePartitionedTopic(t.Context(), topic, 3), a.CreateSubscription(t.Context(), topic, "billing")))
	c := connect(t, s, pulsar.Options{})
	stored := map[string]bool{}
	sends := func() {
		t.Helper()
		for range 5 {
			m := message("orders", 1)
			for begin := time.Now(); ; {
				ctx, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), requestTimeout)
				err := send(ctx, c, m)
				cancel()
				if err == nil {
					break
				}
				assert.MustThat(t, tidegate.Classify(err) == tidegate.ClassTransient && time.Since(begin) < soon, "%v", err)
			}
			stored[m.ID] = true
		}
	}
	for _, interruption := range []struct {
		name string
		do   func() error
	}{
		{"none", func() error { return nil }},
		{"unloaded", func() error { return a.Unload(t.Context(), topic) }},
		{"restarted", func() error { s.Stop(); return s.Restart(t.Context()) }},
		{"killed", func() error { s.Kill(); return s.Restart(t.Context()) }},
	} {
		assert.Must(t, interruption.do())
		sends()
		for missing := true; missing; {
			d := receive(t, c, request("orders"))
			delete(stored, d.ID)
			if err := c.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
				assert.MustThat(t, tidegate.Classify(err) == tidegate.ClassTransient || errors.Is(err, tidegate.ErrInvalidHandle), "%s: %v", interruption.name, err)
			}
			missing = len(stored) > 0
		}
	}
}

// A server that does not respond: a send may be stored.
func TestUnresponsiveServer(t *testing.T) {
	t.Parallel()
	s := start(t, standalone.Options{})
	topic := full("public/default", "orders")
	assert.Must(t, errors.Join(s.Admin().CreateTopic(t.Context(), topic), s.Admin().CreateSubscription(t.Context(), topic, "billing")))
	c := connect(t, s, pulsar.Options{RequestTimeout: 2 * time.Second})
	first := message("orders", 1)
	for begin := time.Now(); send(t.Context(), c, first) != nil; {
		assert.MustThat(t, time.Since(begin) < soon, "no send succeeds")
	}
	assert.Must(t, syscall.Kill(s.PID(), syscall.SIGSTOP))
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	late := message("orders", 1)
	err := send(ctx, c, late)
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.MaybeStored && errors.Is(err, context.DeadlineExceeded), "a send without a response: %v, want MaybeStored", err)
	t.Logf("the send ended after %v of 300ms", time.Since(begin))
	assert.Must(t, syscall.Kill(s.PID(), syscall.SIGCONT))
	var d *tidegate.Delivery
	for d = receive(t, c, request("orders")); d.ID == first.ID; d = receive(t, c, request("orders")) {
	}
	assert.Equal(t, "received", d.ID, late.ID)
}

// A ledger of a server that is killed under load: no send fails, and every accepted message is
// received. The server stores acknowledgements about once a second, so messages can be redelivered.
func TestKilledServerLosesNoAcceptedMessage(t *testing.T) {
	t.Parallel()
	s := start(t, standalone.Options{})
	assert.Must(t, s.Admin().CreateTopic(t.Context(), full("public/default", "orders")))
	r := servertest.Kill(t, servertest.Victim{
		Sender: connect(t, s, pulsar.Options{}), Receiver: connect(t, s, pulsar.Options{}), Topic: "orders", Group: "billing", Kill: s.Kill,
		Restart: func(ctx context.Context) error {
			wait(t, *away)
			return s.Restart(ctx)
		},
	})
	t.Logf("%d messages accepted and received, %d extra deliveries; %d attempts ended with their connection", r.Accepted, r.Extra, r.InFlight)
}
