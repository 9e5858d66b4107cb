package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
)

// inGroup returns messages of one message group with these IDs, the bodies being the IDs.
func inGroup(group string, ids ...string) (msgs []*tidegate.Message) {
	for _, id := range ids {
		msgs = append(msgs, &tidegate.Message{ID: id, Topic: "t", MessageGroup: group, Body: []byte(id)})
	}
	return msgs
}

// bodiesOf returns the bodies of the messages in topic "t" in their stored order.
func bodiesOf(t *testing.T, b *broker.Broker) string {
	t.Helper()
	var got []string
	for _, d := range receiveAll(t, b, "t") {
		got = append(got, string(d.Body))
	}
	return strings.Join(got, " ")
}

// A suspicion that turns out wrong does not let those behind the suspect in
// its message group pass it.
func TestWrongSuspicionKeepsTheOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
		mustSend(t, b, inGroup("g", "m1")...)
		time.Sleep(3 * time.Minute) // its ID is not forgotten yet, and its window is over
		msgs := append(inGroup("g", "m1", "m2"), inGroup("h", "n1")...)
		msgs = append(msgs, inGroup("g", "m3", "m2")...)
		rs := b.Send(t.Context(), msgs)
		for i, r := range rs {
			if r.Err != nil {
				t.Errorf("message %d: %v", i, r.Err)
			}
		}
		if rs[4] != rs[1] || rs[0].Receipt.Offset == 0 {
			t.Errorf("results: %+v", rs)
		}
		// Another group need not wait.
		if got, want := bodiesOf(t, b), "m1 n1 m1 m2 m3"; got != want {
			t.Errorf("stored %s, want %s", got, want)
		}
	})
}

// Real duplicates get the receipts of the first messages, and do not hold back new messages for
// long.
func TestRepeatedBatchOfAMessageGroup(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
	first := b.Send(t.Context(), inGroup("g", "1", "2", "3"))
	again := b.Send(t.Context(), inGroup("g", "1", "2", "3", "4", "5"))
	if again[0] != first[0] || again[1] != first[1] || again[2] != first[2] || again[3].Err != nil || again[4].Err != nil {
		t.Errorf("%+v, first %+v", again, first)
	}
	if got, want := bodiesOf(t, b), "1 2 3 4 5"; got != want {
		t.Errorf("stored %s, want %s", got, want)
	}
}

// If a message of a message group is rejected temporarily, the later messages of the group are
// rejected too.
func TestRejectionKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options broker.Options
		rate    settings.Rate
		limit   string
	}{
		"rate of bytes": {rate: settings.Rate{BytesPerSecond: 200}, limit: engine.TopicRateBytes},
		"client quota":  {options: broker.Options{ClientQuota: settings.Quota{MessagesPerSecond: 10, Burst: 2}}, limit: engine.ClientQuota},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, c.options)
				putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, MaxRate: c.rate})
				from := func(client string, m *tidegate.Message) engine.Incoming {
					return engine.Incoming{Message: m, Client: client}
				}
				ms := append(inGroup("g", "m1", "m2", "m3", "m4"), inGroup("h", "n1")...)
				ms[2].Body = make([]byte, 150)
				in := []engine.Incoming{from("c", ms[0]), from("c", ms[1]), from("c", ms[2]), from("", ms[3]), from("", ms[4])}
				in[1].Message.Body = make([]byte, 100)
				rs := serve(b).Append(t.Context(), in)
				for i, refused := range []bool{false, false, true, true, false} {
					if errors.Is(rs[i].Err, tidegate.ErrThrottled) != refused || !refused && rs[i].Err != nil {
						t.Errorf("message %d: %v", i, rs[i].Err)
					}
				}
				if fmt.Sprint(rs[2].Err) != fmt.Sprint(rs[3].Err) {
					t.Errorf("the reasons: %v, %v", rs[2].Err, rs[3].Err)
				}
				if n := serve(b).Stats().Throttled[c.limit]; n != 2 {
					t.Errorf("%d are counted, want 2", n)
				}
				// A message is rejected only while an earlier message of its group is rejected.
				time.Sleep(time.Second)
				if rs := serve(b).Append(t.Context(), in[2:4]); rs[0].Err != nil || rs[1].Err != nil {
					t.Errorf("a second later: %+v", rs)
				}
				if ds := receiveAll(t, b, "t"); len(ds) != 5 || ds[3].ID != "m3" || ds[4].ID != "m4" {
					t.Errorf("stored: %+v", ds)
				}
			})
		})
	}
}

// A message has left its remembered place, and its new place is unknown. A message with the same ID
// is stored, and the send does not loop.
func TestRememberedPlaceThatIsEmpty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		window := func(d time.Duration) {
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1, DuplicateWindow: settings.Duration(d)})
		}
		send := func() tidegate.Receipt {
			r := b.Send(t.Context(), []*tidegate.Message{{ID: "x", Topic: "t", DeliverAt: time.Now().Add(10 * time.Second), Body: []byte("x")}})[0]
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			return r.Receipt
		}
		window(2 * time.Minute)
		first := send()
		if again := send(); again != first {
			t.Errorf("repeated: %+v, first %+v", again, first)
		}
		if n := serve(b).Stats().Topics[0].Duplicates; n != 1 {
			t.Errorf("%d duplicates are counted", n)
		}
		window(-1)
		elapse(11 * time.Second) // it is moved
		window(2 * time.Minute)
		send()
		elapse(11 * time.Second)

		// A place that was left without a note, as that of a corrupt message.
		rememberID(t, b, "t", "x", engine.PendingLocation{Due: time.Now().UnixNano(), Offset: 7})
		send()
		elapse(11 * time.Second)
		if n := stored(t, b, "t"); n != 3 {
			t.Errorf("%d are stored, want 3", n)
		}
	})
}
