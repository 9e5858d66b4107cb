package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// fateOf returns the only fate of the only message with an ID.
func fateOf(t *testing.T, b *broker.Broker, topic, id string) status.Fate {
	t.Helper()
	tr, err := serve(b).Trace(topic, status.MessageQuery{MessageFilter: status.MessageFilter{ID: id}}, 0, func(string) bool { return true })
	if err != nil || len(tr.Messages) != 1 || len(tr.Messages[0].Groups) != 1 {
		t.Fatalf("the trace of %s: %+v, %v", id, tr, err)
	}
	return tr.Messages[0].Groups[0]
}

// The trace of a message follows it through the states of a group without order.
func TestTraceStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "0", Body: []byte("x")})
		first := one(t, b, "g", "t")
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "1", Body: []byte("x")}, &tidegate.Message{Topic: "t", ID: "2", Body: []byte("x")})
		expect := func(id, state string, attempt int) status.Fate {
			t.Helper()
			f := fateOf(t, b, "t", id)
			if f.Group != "g" || f.State != state || f.Attempt != attempt {
				t.Errorf("the fate of %s is %+v, want %s with attempt %d", id, f, state, attempt)
			}
			return f
		}
		if f := expect("2", "new", 0); f.Ahead != 1 || f.MaxAttempts != 2 {
			t.Errorf("before it are %d messages, of %d attempts", f.Ahead, f.MaxAttempts)
		}
		if f := expect("0", "inflight", 1); !f.Due.Equal(first.InvisibleUntil) {
			t.Errorf("the lease ends at %v, want %v", f.Due, first.InvisibleUntil)
		}
		if err := errors.Join(b.Ack(t.Context(), []*tidegate.Delivery{first})...); err != nil {
			t.Fatal(err)
		}
		expect("0", "done", 0)

		began := time.Now()
		if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Delay: time.Minute, Reason: "no such account"}); err != nil {
			t.Fatal(err)
		}
		if f := expect("1", "waiting_retry", 1); !f.Due.Equal(began.Add(time.Minute)) {
			t.Errorf("the retry is at %v, want %v", f.Due, began.Add(time.Minute))
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		expect("1", "ready", 1)
		if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Delay: time.Minute, Reason: "still no such account"}); err != nil {
			t.Fatal(err)
		}
		if f := expect("1", "dead_letter", 2); f.Reason != "still no such account" || f.DeadLetter == nil || f.DeadLetter.MessageID != "1" {
			t.Errorf("the dead letter is %+v", f)
		}
		if _, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil {
			t.Fatal(err)
		}
		if f := expect("1", "dead_letter", 0); f.DeadLetter != nil || f.RedrivenAs != "" {
			t.Errorf("the purged dead letter is %+v, redriven as %q", f.DeadLetter, f.RedrivenAs)
		}
	})
}

// The trace of a message leads from each redrive with a new ID to the next one.
func TestTraceRedriven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		for i, id := range []string{"1", "1.redrive-1", "1.redrive-2"} {
			m := &tidegate.Message{Topic: "t", ID: id, Body: []byte("x")}
			if i > 0 {
				m.Properties = map[string]string{protocol.PropertyDeadLetterRedrives: fmt.Sprint(i)}
			}
			mustSend(t, b, m)
			if i > 0 {
				before := []string{"1", "1.redrive-1"}[i-1]
				if f := fateOf(t, b, "t", before); f.State != "dead_letter" || f.RedrivenAs != id {
					t.Errorf("the fate of %s is %+v, want a redrive as %s", before, f, id)
				}
			}
			if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: "no such account"}); err != nil {
				t.Fatal(err)
			}
			if f := fateOf(t, b, "t", id); f.DeadLetter == nil || f.RedrivenAs != "" {
				t.Errorf("the fate of %s is %+v, want a dead letter", id, f)
			}
			if _, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// In a FIFO group that parks, the messages behind the parked one name it, also those on disk only.
func TestTraceParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1, Type: settings.TopicFIFO})
		putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
		for _, id := range []string{"a1", "a2", "b1"} {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: id, MessageGroup: id[:1], Body: []byte("x")})
		}
		head := one(t, b, "g", "t")
		second := one(t, b, "g", "t")
		if head.ID != "a1" || second.ID != "b1" {
			t.Fatalf("received %s and %s", head.ID, second.ID)
		}
		if f := fateOf(t, b, "t", "a2"); f.State != "held" || f.Behind == nil || f.Behind.ID != "a1" {
			t.Errorf("behind a message in flight: %+v", f)
		}
		if _, err := b.Settle(t.Context(), head, transport.Verdict{Kind: transport.Retry, Reason: "no money"}); err != nil {
			t.Fatal(err)
		}
		if f := fateOf(t, b, "t", "a1"); f.State != "parked" || f.Reason != "no money" || f.Behind != nil || !f.Due.Equal(time.Now()) {
			t.Errorf("the parked message: %+v", f)
		}
		if f := fateOf(t, b, "t", "a2"); f.State != "parked" || f.Reason != "no money" || f.Behind == nil || f.Behind.ID != "a1" {
			t.Errorf("behind the parked message: %+v", f)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "a3", MessageGroup: "a", Body: []byte("x")})
		if f := fateOf(t, b, "t", "a3"); f.State != "new" || f.Behind == nil || f.Behind.ID != "a1" {
			t.Errorf("a new message of the message group: %+v", f)
		}
	})
}

// Messages that are in no queue: delayed ones have their time, recalled ones are gone, half ones
// are marked.
func TestTracePending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "later", settings.Topic{Type: settings.TopicDelay})
		putTopic(t, b, "half", settings.Topic{Type: settings.TopicTransaction})
		at := time.Now().Add(time.Hour)
		handle := send(t, b, &tidegate.Message{Topic: "later", ID: "d", DeliverAt: at, Body: []byte("x")})[0].Receipt.RecallHandle
		find := func(topic, id string) status.Trace {
			t.Helper()
			tr, err := serve(b).Trace(topic, status.MessageQuery{MessageFilter: status.MessageFilter{ID: id}}, 0, func(string) bool { return true })
			if err != nil || len(tr.Messages) != 0 || !tr.Complete {
				t.Fatalf("%+v, %v", tr, err)
			}
			return tr
		}
		if tr := find("later", "d"); !tr.DeliverAt.Equal(at) || tr.Half {
			t.Errorf("the delayed message: %+v, want %v", tr, at)
		}
		if _, err := b.Recall(t.Context(), "later", handle); err != nil {
			t.Fatal(err)
		}
		if tr := find("later", "d"); !tr.DeliverAt.IsZero() {
			t.Errorf("the recalled message: %+v", tr)
		}
		if r := serve(b).SendHalf(t.Context(), &tidegate.Message{Topic: "half", ID: "h", Body: []byte("x")}, 0); r.Err != nil {
			t.Fatal(r.Err)
		}
		if tr := find("half", "h"); !tr.Half {
			t.Errorf("the half message: %+v", tr)
		}
		if tr := find("half", "x"); tr.Half {
			t.Errorf("an unknown message: %+v", tr)
		}
	})
}
