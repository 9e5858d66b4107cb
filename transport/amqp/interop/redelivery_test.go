package interop

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// Without copies a retry waits for the redelivery-delay of the address, times its multiplier.
func TestRedeliveryDelay(t *testing.T) {
	p := maps.Clone(properties)
	p[`addressSettings."#".autoCreateAddresses`] = "true"
	p[`addressSettings."#".redeliveryDelay`] = "1000"
	p[`addressSettings."#".redeliveryMultiplier`] = "2"
	s := start(t, artemis.Options{Properties: p})
	c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	r := transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Millisecond,
	}
	if _, err := c.Receive(t.Context(), r); err != nil { // creates the queue
		t.Fatal(err)
	}
	assert.Must(t, send(t.Context(), c, message("orders", 1)))
	r.Wait = time.Second
	d := receive(t, c, r)
	again := func(what string, attempt int, delay time.Duration, end func() error) {
		t.Helper()
		start := time.Now()
		assert.Must(t, end())
		d = receive(t, c, r)
		if waited := time.Since(start); d.Attempt != attempt || waited < delay-50*time.Millisecond {
			t.Errorf("%s: attempt %d after %v, want attempt %d after %v or more", what, d.Attempt, waited, attempt, delay)
		}
	}
	again("a failure", 2, time.Second, func() error {
		_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Reason: "no such customer"})
		return err
	})
	again("a second failure", 3, 2*time.Second, func() error {
		_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Reason: "no such customer"})
		return err
	})
	if errs := c.Ack(t.Context(), []*tidegate.Delivery{d}); errs[0] != nil {
		t.Error(errs[0])
	}
}

// The end of a client right after its acknowledgements were written loses none of them.
func TestAcknowledgementsBeforeTheConnectionEnds(t *testing.T) {
	s, a := server(t)
	topic := "acked-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "billing")))
	const messages = 200
	c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	for range messages {
		assert.Must(t, send(t.Context(), c, message(topic, 1)))
	}
	var n network
	ending := client(t, s.Address(), amqp.Options{Dialer: n.dial, RequestTimeout: requestTimeout})
	r := transport.ReceiveRequest{Group: "billing", Topic: topic, Queue: transport.AnyQueue, Max: messages, InvisibleDuration: time.Minute, Wait: time.Second}
	for acked := 0; acked < messages; {
		ds := assert.Value(ending.Receive(t.Context(), r))(t)
		for _, err := range ending.Ack(t.Context(), ds) {
			assert.Must(t, err)
		}
		acked += len(ds)
	}
	n.cut(true)
	for start := time.Now(); ; { // the server reads the last bytes of the connection
		left, err := a.do(t.Context(), "queue."+topic+".billing", "countMessages")
		if err == nil && left == "[0]" {
			return
		}
		assert.MustThat(t, time.Since(start) <= soon, "the queue has %s messages, %v; want 0", left, err)
		wait(t, 100*time.Millisecond)
	}
}

// A frame that acknowledges a range of deliveries ends these deliveries only.
func TestAcknowledgedRanges(t *testing.T) {
	s, a := server(t)
	topic := "ranges-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "billing")))
	const messages = 50
	c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	for range messages {
		assert.Must(t, send(t.Context(), c, message(topic, 1)))
	}
	r := transport.ReceiveRequest{Group: "billing", Topic: topic, Queue: transport.AnyQueue, Max: messages, InvisibleDuration: time.Minute, Wait: time.Second}
	var all []*tidegate.Delivery
	for start := time.Now(); len(all) < messages && time.Since(start) < soon; {
		ds := assert.Value(c.Receive(t.Context(), r))(t)
		all = append(all, ds...)
	}
	var acked, kept []*tidegate.Delivery
	for i, d := range all {
		if i%10 == 3 {
			kept = append(kept, d)
		} else {
			acked = append(acked, d)
		}
	}
	for _, err := range c.Ack(t.Context(), acked) {
		assert.NoError(t, err)
	}
	c.Close() // the server gets the others back
	c = client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	left := map[string]bool{}
	for start := time.Now(); len(left) < len(kept) && time.Since(start) < soon; {
		ds := assert.Value(c.Receive(t.Context(), r))(t)
		for _, d := range ds {
			left[d.ID] = true
		}
	}
	for _, d := range kept {
		assert.That(t, left[d.ID], "message %s was not acknowledged, and is gone", d.ID)
	}
	assert.That(t, len(left) == len(kept) && len(kept) == messages/10, "%d messages are left, want %d", len(left), messages/10)
}
