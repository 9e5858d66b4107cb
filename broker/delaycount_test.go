package broker

import (
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// What waits for its delivery time is told, and counts in the limit of its
// topic: the same when it is moved to its queue, and after a restart.
func TestDelayedMessagesCountInTheLimit(t *testing.T) {
	for name, limit := range map[string]Limit{"messages": {Messages: 100}, "bytes": {Bytes: 1000}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, Options{Dir: "data", fs: fs})
				putTopic(t, b, "t", TopicConfig{Type: TopicDelay, MaxBacklog: limit})
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
				send := func(after time.Duration) error {
					return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 10), DeliverAt: time.Now().Add(after)})[0].Err
				}
				is := func(when string, stored, delayed, backlog int64, throttled bool) {
					t.Helper()
					info, err := b.Topic("t")
					if err != nil || info.Messages != stored || info.DelayedMessages != delayed || info.DelayedBytes != delayed*10 || info.Backlog.Messages != backlog {
						t.Errorf("%s: %+v, %v", when, info, err)
					}
					if st := b.Stats().Topics[0]; st.Delayed != (Backlog{delayed, delayed * 10}) {
						t.Errorf("%s: the figures say %+v", when, st.Delayed)
					}
					if (info.Throttle != nil) != throttled {
						t.Errorf("%s: throttled by %+v", when, info.Throttle)
					}
					if err := send(time.Hour); throttled != errors.Is(err, tidegate.ErrThrottled) {
						t.Errorf("%s: a send has %v", when, err)
					}
				}
				for i := range 100 {
					if err := send(time.Duration(1+i%2) * time.Minute); err != nil {
						t.Fatalf("send %d: %v", i, err)
					}
				}
				is("sent", 0, 100, 0, true)
				elapse(time.Minute)
				is("half of it is due", 50, 50, 50, true)
				b = reopen(t, b, fs)
				is("opened again", 50, 50, 50, true)
				elapse(time.Minute)
				is("all is due", 100, 0, 100, true)
				for range 2 { // from 100 to 80
					ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 10}))
				}
				is("some is consumed", 100, 0, 80, false)
				is("and one was sent", 100, 1, 80, false)
			})
		})
	}
}

// Whatever ends the wait of delayed messages takes them out of the count.
func TestDelayedMessagesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, Options{Dir: "data", fs: fs})
		putTopic(t, b, "t", TopicConfig{Type: TopicDelay, Queues: 1})
		send := func(after time.Duration) tidegate.Receipt {
			t.Helper()
			r := send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 10), DeliverAt: time.Now().Add(after)})[0]
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			return r.Receipt
		}
		is := func(when string, want int64) {
			t.Helper()
			for range 2 {
				info, err := b.Topic("t")
				if err != nil || info.DelayedMessages != want || info.DelayedBytes != 10*want {
					t.Errorf("%s: %d messages, %d bytes wait, want %d; %v", when, info.DelayedMessages, info.DelayedBytes, want, err)
				}
				b = reopen(t, b, fs)
			}
		}
		r := send(time.Hour)
		send(2 * time.Hour)
		send(3 * time.Hour)
		is("sent", 3)
		if _, err := b.Recall(t.Context(), "t", r.RecallHandle); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Recall(t.Context(), "t", r.RecallHandle); err == nil {
			t.Error("it was recalled twice")
		}
		is("recalled", 2)
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed != (Backlog{2, 20}) {
			t.Errorf("purged %+v, %v", removed, err)
		}
		is("purged", 0)

		// One that is damaged waits no longer once its time has come.
		send(time.Minute)
		tp, err := b.topic("t")
		if err != nil {
			t.Fatal(err)
		}
		ds, _, err := b.store.DelayedOf(tp.id, store.Delayed{}, 2)
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		k := binary.BigEndian.AppendUint64([]byte{'y'}, uint64(ds[0].Due.UnixNano()))
		k = binary.BigEndian.AppendUint32(k, tp.id)
		overwrite(t, b, binary.BigEndian.AppendUint64(k, ds[0].Number))
		elapse(2 * time.Minute)
		is("damaged", 0)

		send(time.Hour)
		if err := b.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		if err := b.store.Waiting(func(id uint32, n store.Waiting) error {
			t.Errorf("of the deleted topic is left: %d, %+v", id, n)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", TopicConfig{Type: TopicDelay, Queues: 1})
		is("made anew", 0)
	})
}
