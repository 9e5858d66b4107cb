package broker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// delayed returns the messages of a topic that wait for their delivery time.
func delayed(t *testing.T, b *broker.Broker, topic string) status.Backlog {
	t.Helper()
	info, err := b.Topic(topic)
	if err != nil {
		t.Fatal(err)
	}
	return status.Backlog{Messages: info.DelayedMessages, Bytes: info.DelayedBytes}
}

// The delayed messages of other topics, in any number and with any damage, do not concern a purge
// or the deletion of a topic. None of its own is left.
func TestPurgeLooksAtNoOtherTopicsDelayedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		for _, name := range []string{"a", "b"} {
			putTopic(t, b, name, settings.Topic{Type: settings.TopicDelay, Queues: 1})
		}
		corruptRecord(t, b, []byte("y, which is no key of a delayed message"))
		later := func(i int) time.Time { return time.Now().Add(time.Duration(1+i%50) * time.Minute) }
		for i := range engine.DelayedBatch + 5 {
			mustSend(t, b, &tidegate.Message{Topic: "a", Body: make([]byte, 1+i%7), DeliverAt: later(i)})
			if i%1000 == 0 {
				mustSend(t, b, &tidegate.Message{Topic: "b", Body: []byte("x"), DeliverAt: later(i)})
			}
		}
		r := send(t, b, &tidegate.Message{ID: "recalled", Topic: "b", Body: []byte("x"), DeliverAt: later(7)})[0]
		a := topicOf(t, b, "a")
		want := delayed(t, b, "a")
		if removed, err := b.PurgeTopic(t.Context(), "a"); err != nil || removed != want || want.Messages != engine.DelayedBatch+5 {
			t.Errorf("purged %+v, %v; want %+v", removed, err, want)
		}
		mustSend(t, b, &tidegate.Message{Topic: "a", Body: []byte("x"), DeliverAt: later(0)})
		if err := b.DeleteTopic(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if left := delayedRecords(t, b, a); len(left) > 0 {
			t.Errorf("%+v are left", left)
		}
		if id, err := b.Recall(t.Context(), "b", r.Receipt.RecallHandle); err != nil || id != "recalled" {
			t.Errorf("recalled %q, %v", id, err)
		}
		if other := delayed(t, b, "b"); other != (status.Backlog{Messages: 5, Bytes: 5}) {
			t.Errorf("%+v wait in the other topic", other)
		}
	})
}

// Messages that are sent after the begin of a purge stay, and cannot keep it from ending.
func TestPurgeWhileDelayedMessagesAreSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1})
		var handles []string
		sends := func() {
			r := send(t, b, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)})[0]
			if r.Err != nil {
				t.Error(r.Err)
			}
			handles = append(handles, r.Receipt.RecallHandle)
		}
		for range 3 {
			sends()
			elapse(time.Second)
		}
		before := handles
		handles = nil
		release := holdDelayed(t, b) // the purge waits for it, once it has begun
		type result struct {
			removed status.Backlog
			err     error
		}
		done := make(chan result, 1)
		go func() {
			removed, err := b.PurgeTopic(t.Context(), "t")
			done <- result{removed, err}
		}()
		synctest.Wait()
		sends()
		release()
		for range 100_000 { // it may be long before a processor is there for the purge
			sends()
			if len(done) > 0 {
				break
			}
		}
		select {
		case r := <-done:
			if r.err != nil || r.removed != (status.Backlog{Messages: 3, Bytes: 3}) {
				t.Errorf("purged %+v, %v; want the 3 that were there", r.removed, r.err)
			}
		default:
			t.Error("it continues as long as messages are sent")
		}
		for _, h := range before {
			if id, err := b.Recall(t.Context(), "t", h); err == nil {
				t.Errorf("%s is recalled and should be gone", id)
			}
		}
		for _, h := range handles {
			if _, err := b.Recall(t.Context(), "t", h); err != nil {
				t.Fatalf("of a message that was sent since: %v", err)
			}
		}
		if left := delayed(t, b, "t"); left != (status.Backlog{}) {
			t.Errorf("%+v wait", left)
		}
	})
}

// A purge removes the rest of a message that was corrupt when it came due, and the counters no
// longer have it.
func TestPurgeRemovesCorruptDelayedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1})
		for range 3 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)})
		}
		corruptDelayed(t, b, "t", 1)
		elapse(2 * time.Hour)
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)})
		tp := topicOf(t, b, "t")
		if ds := delayedRecords(t, b, tp); len(ds) != 2 || !ds[0].Gone || ds[1].Gone {
			t.Errorf("%+v are stored", ds)
		}
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed != (status.Backlog{Messages: 3, Bytes: 3}) {
			t.Errorf("purged %+v, %v; want two that came and one that waits", removed, err)
		}
		if ds, left := delayedRecords(t, b, tp), delayed(t, b, "t"); len(ds) != 0 || left != (status.Backlog{}) {
			t.Errorf("%+v are left; %+v wait", ds, left)
		}
	})
}
