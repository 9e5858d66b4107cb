package broker_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// TDMQ for Pulsar: retry and dead letters: "In this mode, no new message is generated."
//
// TDMQ for Pulsar: retry and dead letters: "1 minute by default."
//
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, messages
// to retry remain unacknowledged on the server."
//
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, the
// number of retries can be obtained from msg.getRedeliveryCount()."
//
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, there is
// no maximum number of retries by default."
// TDMQ for Pulsar: retry and dead letters: "After receiving the redelivery request from the client,
// the server repushes the message to the client"
func TestNegativeAck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
		putAddress(t, b, "t", settings.Address{RedeliveryDelay: new(settings.Milliseconds(7)), MaxDeliveryAttempts: new(3)})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		d := one(t, b, "g", "t")
		for attempt := 2; attempt <= 40; attempt++ {
			asked := time.Now()
			if err := serve(b).NegativeAck(t.Context(), d, 0); err != nil {
				t.Fatal(err)
			}
			if attempt == 20 {
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				b = open(t, broker.Options{Dir: "data"}.On(fs))
			}
			if g, err := b.Group("g"); err != nil || g.Topics[0].Backlog.Messages != 1 || g.Topics[0].Acked != 0 {
				t.Fatalf("while it waits the group has %+v, %v", g.Topics, err)
			}
			if d = one(t, b, "g", "t"); d.ID != "m" || d.Attempt != attempt || time.Since(asked) != time.Minute {
				t.Fatalf("%s, attempt %d, came after %v", d.ID, d.Attempt, time.Since(asked))
			}
		}
	})
}

// TDMQ for Pulsar: retry and dead letters: "The message will be re-obtained after a certain period.
// The interval for re-obtaining the message can be specified by negativeAckRedeliveryDelay in the
// consumer"
func TestNegativeAckDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{NegativeAck: settings.NegativeAck{Delay: settings.Duration(time.Hour)}})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := one(t, b, "g", "t")
		for given, want := range map[time.Duration]time.Duration{0: time.Hour, time.Nanosecond: time.Nanosecond, settings.MaxReconsumeDelay: settings.MaxReconsumeDelay} {
			asked := time.Now()
			if err := serve(b).NegativeAck(t.Context(), d, given); err != nil {
				t.Fatal(err)
			}
			if d = one(t, b, "g", "t"); time.Since(asked) != want {
				t.Errorf("%v: it came after %v", given, time.Since(asked))
			}
		}
		for _, delay := range []time.Duration{-1, settings.MaxReconsumeDelay + 1} {
			if err := serve(b).NegativeAck(t.Context(), d, delay); !errors.Is(err, tidegate.ErrInvalid) {
				t.Errorf("%v: %v", delay, err)
			}
		}
	})
}

// TDMQ for Pulsar: retry and dead letters: "However, this can be implemented by configuring the
// maximum number of retries and the dead letter queue. In this mode, when a message has been
// retried for a specified number of times, it will be delivered to the dead letter queue."
func TestNegativeAckMaximum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "sub1", settings.Group{
			NegativeAck: settings.NegativeAck{MaxRedeliveries: 5, Delay: settings.Duration(time.Second)},
			RetryTopic:  settings.RetryTopic{Enabled: true, DeadLetterTopic: "sub1-dlq"},
		})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		var attempts []int
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "sub1", Topic: "t", Wait: time.Hour})
			if len(ds) == 0 {
				break
			}
			attempts = append(attempts, ds[0].Attempt)
			if err := serve(b).NegativeAck(t.Context(), ds[0], 0); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(attempts, []int{1, 2, 3, 4, 5, 6}) {
			t.Errorf("the attempts are %v: want the first and 5 redeliveries", attempts)
		}
		if ds := receiveAll(t, b, "sub1-dlq"); len(ds) != 1 || ds[0].ID != "m" {
			t.Errorf("%d dead letters", len(ds))
		}
	})
}

// The mark of a negative acknowledgement lasts until the next delivery. A maximum that is lowered
// before that delivery does not end the message; one that is lowered after the next failure does.
func TestNegativeMarkEndsWithTheNextDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		allow := func(attempts int) {
			t.Helper()
			putGroup(t, b, "g", settings.Group{MaxAttempts: attempts, Retry: []time.Duration{time.Hour}})
		}
		allow(5)
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		if err := serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Hour); err != nil {
			t.Fatal(err)
		}
		allow(1)
		d := one(t, b, "g", "t")
		if d.Attempt != 2 {
			t.Fatalf("attempt %d", d.Attempt)
		}
		allow(5)
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		allow(2)
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 2 * time.Hour}); len(ds) != 0 {
			t.Errorf("attempt %d of 2", ds[0].Attempt)
		}
		if ds := receiveAll(t, b, "%DLQ%g"); len(ds) != 1 || ds[0].ID != "m" {
			t.Errorf("%d dead letters", len(ds))
		}
	})
}
