package endtoend

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// newSimple returns a simple consumer of the group billing and the topic orders.
func newSimple(t *testing.T, b *brokertest.Broker, o consumer.SimpleOptions) *consumer.Simple {
	t.Helper()
	s, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The program of a simple consumer makes all decisions: it extends the lease of one delivery any
// number of times, retries a message at once or later, makes a dead letter, and acknowledges.
//
// Each call returns an error or nil, and an extension spends no attempt.
func TestSimpleConsumerByHand(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		s := newSimple(t, b, consumer.SimpleOptions{InvisibleDuration: 30 * time.Second, LongPolling: 5 * time.Second})
		receive := func() *tidegate.Delivery {
			t.Helper()
			ds, err := s.Receive(t.Context(), 1)
			if err != nil || len(ds) != 1 {
				t.Fatalf("%d deliveries, %v", len(ds), err)
			}
			return ds[0]
		}
		if ds, err := s.Receive(t.Context(), 1); len(ds) != 0 || err != nil {
			t.Errorf("from an empty topic: %v, %v", ds, err)
		}
		b.Send(Order(1))
		d := receive()
		for range 100 { // 100 × 20 s
			<-time.After(20 * time.Second)
			before := d.Handle
			if err := s.ChangeInvisibleDuration(t.Context(), d, 30*time.Second); err != nil || d.Handle == before {
				t.Fatalf("extension: %v", err)
			}
		}
		if d.Attempt != 1 || b.Stats("billing", "orders").Redelivered != 0 {
			t.Errorf("attempt %d after 100 extensions", d.Attempt)
		}
		begin := time.Now()
		if err := s.ChangeInvisibleDuration(t.Context(), d, 0); err != nil {
			t.Error(err)
		}
		if d = receive(); d.Attempt != 2 || time.Since(begin) > time.Second {
			t.Errorf("attempt %d after %v, want 2 at once", d.Attempt, time.Since(begin))
		}
		if _, err := s.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no such customer"}); err != nil {
			t.Error(err)
		}
		if l := b.WaitDeadLetter("billing"); l.Origin.Reason != "no such customer" || l.Origin.Attempts != 2 {
			t.Errorf("dead letter %+v", l.Origin)
		}
		b.Send(Order(2))
		if d = receive(); string(d.Body) != "2" {
			t.Errorf("received %s", d.Body)
		}
		if err := s.Ack(t.Context(), d); err != nil {
			t.Error(err)
		}
		if n := b.Stats("billing", "orders").Backlog.Messages; n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// A late acknowledgement, extension or dead letter changes nothing. Its error matches
// ErrInvalidHandle and names the message: the next delivery is not touched by them.
func TestLateCallsOfASimpleConsumer(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		s := newSimple(t, b, consumer.SimpleOptions{InvisibleDuration: 30 * time.Second, LongPolling: 5 * time.Second})
		b.Send(Order(1))
		ds, err := s.Receive(t.Context(), 1)
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		late := ds[0]
		<-time.After(31 * time.Second)
		next, err := s.Receive(t.Context(), 1)
		if err != nil || len(next) != 1 {
			<-time.After(15 * time.Second) // its retry interval
			if next, err = s.Receive(t.Context(), 1); err != nil || len(next) != 1 {
				t.Fatal(next, err)
			}
		}
		before := *late
		_, dead := s.Settle(t.Context(), late, transport.Verdict{Kind: transport.DeadLetter, Reason: "late"})
		for call, err := range map[string]error{
			"Ack":                     s.Ack(t.Context(), late),
			"ChangeInvisibleDuration": s.ChangeInvisibleDuration(t.Context(), late, time.Minute),
			"DeadLetter":              dead,
		} {
			if !errors.Is(err, tidegate.ErrInvalidHandle) || !strings.Contains(err.Error(), "orders") {
				t.Errorf("%s of a delivery that is over: %v", call, err)
			}
		}
		if late.Handle != before.Handle || !late.InvisibleUntil.Equal(before.InvisibleUntil) {
			t.Error("a failed extension changed the delivery")
		}
		if err := s.Ack(t.Context(), next[0]); err != nil {
			t.Errorf("the next delivery: %v", err)
		}
		if st := b.Stats("billing", "orders"); st.DeadLetters != 0 || st.Backlog.Messages != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// The iterator continues after faults, with growing waits, and ends with ctx.
func TestIteratorSurvivesRestarts(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		s := newSimple(t, b, consumer.SimpleOptions{InvisibleDuration: 30 * time.Second, LongPolling: 10 * time.Second, BatchSize: 4})
		var receives atomic.Int64 // every other one fails
		b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			if call.Op == "ReceiveMessage" && receives.Add(1)%2 == 1 {
				return brokertest.Throttled(2 * time.Second)
			}
			return next(ctx)
		})
		for n := range 10 {
			b.Send(Order(n))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		faults := 0
		for d, err := range s.All(ctx) {
			if err != nil {
				faults++
				continue
			}
			if err := s.Ack(ctx, d); err != nil {
				t.Error(err)
			}
			if got = append(got, string(d.Body)); len(got) == 10 {
				cancel()
			}
		}
		slices.Sort(got)
		if strings.Join(got, "") != "0123456789" || faults == 0 {
			t.Errorf("received %v with %d faults", got, faults)
		}
	})
}
