package broker_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// open returns a broker in memory that takes any invisible duration.
func open(tb testing.TB, o broker.Options) *broker.Broker {
	tb.Helper()
	if o.MinInvisibleDuration == 0 {
		o.MinInvisibleDuration = 1
	}
	b, err := broker.Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("closing the broker: %v", err)
		}
	})
	return b
}

func putTopic(tb testing.TB, b *broker.Broker, name string, c settings.Topic) {
	tb.Helper()
	if _, err := b.PutTopic(tb.Context(), name, c); err != nil {
		tb.Fatal(err)
	}
}

func putGroup(tb testing.TB, b *broker.Broker, name string, c settings.Group) {
	tb.Helper()
	if _, err := b.PutGroup(tb.Context(), name, c); err != nil {
		tb.Fatal(err)
	}
}

func send(tb testing.TB, b *broker.Broker, msgs ...*tidegate.Message) []transport.SendResult {
	tb.Helper()
	for _, m := range msgs {
		if m.ID == "" {
			m.ID = tidegate.NewMessageID()
		}
	}
	return b.Send(tb.Context(), msgs)
}

func mustSend(tb testing.TB, b *broker.Broker, msgs ...*tidegate.Message) {
	tb.Helper()
	for _, r := range send(tb, b, msgs...) {
		if r.Err != nil {
			tb.Fatal(r.Err)
		}
	}
}

func receive(tb testing.TB, b *broker.Broker, r transport.ReceiveRequest) []*tidegate.Delivery {
	tb.Helper()
	if r.Queue == 0 {
		r.Queue = transport.AnyQueue
	}
	if r.InvisibleDuration == 0 {
		r.InvisibleDuration = 30 * time.Second
	}
	ds, err := b.Receive(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return ds
}

// receiveAll reads a topic from its beginning, as a group of its own.
func receiveAll(t *testing.T, b *broker.Broker, topic string) (out []*tidegate.Delivery) {
	reader := fmt.Sprintf("reader%d", rand.Uint64())
	defer func() { _ = b.DeleteGroup(t.Context(), reader) }()
	_, longest := serve(b).InvisibleBounds()
	for {
		ds := receive(t, b, transport.ReceiveRequest{Group: reader, Topic: topic, Max: 32, InvisibleDuration: min(time.Hour, longest)})
		if len(ds) == 0 {
			return out
		}
		out = append(out, ds...)
	}
}

// By default 16 retries, then the dead letter.
// RocketMQ: consumption retry: "If the message fails to be consumed even after a specified number
// of retries, the broker sends the message to the dead-letter queue"
// RocketMQ: consumption retry: "If a message fails to be consumed, Apache RocketMQ redelivers the
// message based on a consumption retry policy"
// RocketMQ: consumption retry: "the Apache RocketMQ broker resends a message when the message fails
// to be consumed"
func TestWholeLadder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "orders", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "orders", Body: []byte("x"), ID: "m1", Properties: map[string]string{"k": "v"}})
		start := time.Now()
		ladder := backoff.RetryLadder()
		due := start
		for attempt := 1; attempt <= 17; attempt++ {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "orders", Push: true, Wait: 3 * time.Hour})
			if len(ds) != 1 {
				t.Fatalf("attempt %d: %d deliveries", attempt, len(ds))
			}
			if now := time.Now(); !now.Equal(due) {
				t.Fatalf("attempt %d came at %v, due %v", attempt, now.Sub(start), due.Sub(start))
			}
			if ds[0].Attempt != attempt {
				t.Fatalf("attempt is %d, want %d", ds[0].Attempt, attempt)
			}
			if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: ladder.Delay(attempt - 1)}); err != nil {
				t.Fatal(err)
			}
			due = time.Now().Add(ladder.Delay(attempt - 1))
		}
		if took := time.Since(start); took.Round(time.Minute) != 4*time.Hour+46*time.Minute {
			t.Errorf("the ladder took %v, want 4h46m", took)
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "ops", Topic: "%DLQ%g"})
		if len(ds) != 1 {
			t.Fatalf("%d dead letters at once after the last failure, want 1", len(ds))
		}
		dl, ok := ds[0].DeadLetter()
		want := tidegate.DeadLetter{Topic: "orders", MessageID: "m1", Queue: dl.Queue, Offset: 0, Group: "g", Attempts: 17, Reason: dl.Reason}
		if !ok || dl != want {
			t.Errorf("dead letter is %+v, %v; want %+v", dl, ok, want)
		}
		if ds[0].Properties["k"] != "v" || string(ds[0].Body) != "x" || ds[0].ID != "m1" {
			t.Errorf("dead letter lost something: %+v", ds[0])
		}
		if got := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "orders", Wait: 5 * time.Hour}); len(got) != 0 {
			t.Errorf("a dead letter was delivered again: %+v", got[0])
		}
	})
}
