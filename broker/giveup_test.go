package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// If the address settings have no dead-letter-address, the message is removed after its last
// attempt. A consumer can still make it a dead letter.
func TestRequestedDeadLettersAreKept(t *testing.T) {
	t.Parallel()
	set := settings.Address{RedeliveryDelay: new(settings.Milliseconds(7))}
	for name, c := range map[string]struct {
		group  settings.Group
		giveUp func(t *testing.T, b *broker.Broker)
	}{
		"negative acknowledgement": {settings.Group{NegativeAck: settings.NegativeAck{MaxRedeliveries: 5}}, func(t *testing.T, b *broker.Broker) {
			for range 6 {
				if err := serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Second); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"negative acknowledgement after the last attempt": {settings.Group{NegativeAck: settings.NegativeAck{MaxRedeliveries: 12}}, func(t *testing.T, b *broker.Broker) {
			for range 13 {
				if err := serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Second); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"redrive of parked messages": {settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark}, func(t *testing.T, b *broker.Broker) {
			for range 10 {
				if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Delay: time.Second}); err != nil {
					t.Fatal(err)
				}
			}
			if done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{DeadLetter: true}); err != nil || done.Messages != 1 {
				t.Fatal(done, err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO})
				putAddress(t, b, "t", set)
				putGroup(t, b, "g", c.group)
				mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", MessageGroup: "a", Body: []byte("x")})
				c.giveUp(t, b)
				if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour}); len(ds) != 0 {
					t.Errorf("it is delivered again: attempt %d", ds[0].Attempt)
				}
				if ds := receiveAll(t, b, "%DLQ%g"); len(ds) != 1 || ds[0].ID != "m" {
					t.Errorf("%d dead letters", len(ds))
				}
				if s := subscriptionOf(t, b, "g"); s.DeadLetters != 1 || s.Discarded != 0 {
					t.Errorf("the group has %+v", s)
				}
			})
		})
	}
}

// However much is given up at once, memory holds little of it.
func TestManyDeadLettersAtOnceAreFewInMemory(t *testing.T) {
	t.Parallel()
	const n, size = 16, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
		body := make([]byte, size)
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: body})
		}
		taken := 0
		for taken < n {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Minute})
			taken += len(ds)
		}
		release := holdWrites(b)
		elapse(2 * time.Minute)
		gathered := 0
		inLog(b, func(w *store.Batch) { gathered = (*pebble.Batch)(w).Len() })
		if gathered < size || gathered > 12<<20 { // three times the bound of engine.Letters
			t.Errorf("%d MiB of %d wait in memory to be written", gathered>>20, n)
		}
		release()
		elapse(time.Minute)
		if s := subscriptionOf(t, b, "g"); s.DeadLetters != n || s.Backlog != (status.Backlog{}) {
			t.Errorf("the group has %+v", s)
		}
		if page, err := b.DeadLetters("g", status.DeadLetterQuery{}); err != nil || len(page.DeadLetters) != n {
			t.Errorf("%d dead letters, %v", len(page.DeadLetters), err)
		}
	})
}

// The response to a repeated request for a dead letter comes when the dead letter is on disk, as
// for the first request.
func TestRepeatedDeadLetterWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		release := holdWrites(b)
		answers := make(chan error, 2)
		for range 2 {
			go func() {
				answers <- second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}))
			}()
			synctest.Wait()
		}
		if len(answers) != 0 {
			t.Errorf("%d of 2 requests returned before anything was written", len(answers))
		}
		release()
		for range 2 {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		if n := len(receiveAll(t, b, "%DLQ%g")); n != 1 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// An unreadable or missing message does not become a dead letter, and does not count as one.
func TestLostMessageIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		corruptMessage(t, b, "t", 0, 0)
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
			t.Error(err)
		}
		if s := subscriptionOf(t, b, "g"); s.DeadLetters != 0 || s.Acked != 0 || s.Backlog != (status.Backlog{}) || serve(b).Stats().Damaged != 1 {
			t.Errorf("%d damaged, the group has %+v", serve(b).Stats().Damaged, s)
		}
	})
}
