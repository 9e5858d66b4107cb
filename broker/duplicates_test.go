package broker_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// The broker stores an ID once within the window, and responds with the first receipt to its
// repetitions, also across restarts and while sends are throttled; after the window it is new.
// RocketMQ: sending retry and throttling: "As a result, duplicate messages may exist on the broker"
func TestDuplicates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{MaxBacklog: settings.Limit{Messages: 2}})
		putTopic(t, b, "other", settings.Topic{})
		putTopic(t, b, "every", settings.Topic{DuplicateWindow: -1})
		putTopic(t, b, "short", settings.Topic{DuplicateWindow: settings.Duration(time.Second)})
		sendID := func(topic, id string) transport.SendResult {
			return b.Send(t.Context(), []*tidegate.Message{{ID: id, Topic: topic, Body: []byte(id)}})[0]
		}
		stored := func(topic string, want int64) {
			t.Helper()
			if info, err := b.Topic(topic); err != nil || info.StoredMessages != want {
				t.Errorf("%s has %d messages, want %d; %v", topic, info.StoredMessages, want, err)
			}
		}
		first := sendID("t", "a")
		for i := range 3 {
			if again := sendID("t", "a"); again != first || again.Err != nil {
				t.Errorf("repeated: %+v, want %+v", again, first)
			}
			if i == 1 {
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				b = open(t, broker.Options{Dir: "data"}.On(fs))
			}
		}
		stored("t", 1)
		sendID("t", "b") // now the topic is throttled
		if r := sendID("t", "c"); !errors.Is(r.Err, tidegate.ErrThrottled) {
			t.Errorf("above the limit: %v", r.Err)
		}
		if again := sendID("t", "a"); again != first {
			t.Errorf("repeated while throttled: %+v, want %+v", again, first)
		}
		for topic, want := range map[string]int64{"other": 1, "every": 2, "short": 1} {
			sendID(topic, "a")
			sendID(topic, "a")
			stored(topic, want)
		}
		<-time.After(time.Second)
		sendID("short", "a")
		stored("short", 2)
		<-time.After(2 * time.Minute)
		sendID("other", "a")
		stored("other", 2)

		// Twice in one request.
		rs := b.Send(t.Context(), []*tidegate.Message{
			{ID: "x", Topic: "other", Body: []byte("1")}, {ID: "y", Topic: "other", Body: []byte("2")}, {ID: "x", Topic: "other", Body: []byte("3")},
		})
		if rs[2] != rs[0] || rs[1] == rs[0] || rs[0].Err != nil {
			t.Errorf("twice in one request: %+v", rs)
		}
		stored("other", 4)
	})
}

// The memory of IDs has only hashes: another ID with the same hash is stored.
func TestEqualHashesAreNoDuplicates(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	mustSend(t, b, &tidegate.Message{ID: "a", Topic: "t", Body: []byte("1")})
	rememberID(t, b, "t", "b", engine.PendingLocation{})
	rs := b.Send(t.Context(), []*tidegate.Message{
		{ID: "b", Topic: "t", Body: []byte("2")}, {ID: "a", Topic: "t", Body: []byte("3")}, {ID: "c", Topic: "t", Body: []byte("4")},
	})
	got := fmt.Sprint(rs[0].Receipt.Offset, rs[1].Receipt.Offset, rs[2].Receipt.Offset, rs[0].Err, rs[1].Err, rs[2].Err)
	if got != "2 0 1 <nil> <nil> <nil>" {
		t.Errorf("offsets and errors: %s", got)
	}
}

// Many callers send the same messages at the same time: each is stored once, and all have one
// receipt.
func TestDuplicatesAtTheSameTime(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{})
	var mu sync.Mutex
	receipts := map[string]tidegate.Receipt{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				id := fmt.Sprint(i)
				r := b.Send(t.Context(), []*tidegate.Message{{ID: id, Topic: "t", Body: []byte("x")}})[0]
				mu.Lock()
				if first, ok := receipts[id]; r.Err != nil || ok && first != r.Receipt {
					t.Errorf("%s: %+v, first %+v", id, r, first)
				}
				receipts[id] = r.Receipt
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if info, err := b.Topic("t"); err != nil || info.StoredMessages != 200 {
		t.Errorf("%d messages, want 200; %v", info.StoredMessages, err)
	}
}
