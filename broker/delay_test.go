package broker

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Delayed messages arrive at their time, exactly, in whatever order they were
// sent, also across restarts; those of the past at once.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, Options{Dir: "data", fs: fs})
		putTopic(t, b, "t", TopicConfig{Type: TopicDelay})
		start := time.Now()
		for _, after := range []time.Duration{24 * time.Hour, time.Second, time.Hour, -time.Hour, time.Minute, 0, 90 * time.Second} {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte(after.String()), DeliverAt: start.Add(after)})
		}
		for i, want := range []time.Duration{0, 0, time.Second, time.Minute, 90 * time.Second, time.Hour, 24 * time.Hour} {
			if i == 3 || i == 6 {
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				b = open(t, Options{Dir: "data", fs: fs})
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 25 * time.Hour})
			if len(ds) != 1 {
				t.Fatalf("message %d: %d deliveries", i, len(ds))
			}
			if got := time.Since(start); got != want || i > 1 && string(ds[0].Body) != want.String() {
				t.Errorf("message %d, %s, arrived after %v, want %v", i, ds[0].Body, got, want)
			}
			if d := ds[0].DeliverAt.Sub(start).String(); d != string(ds[0].Body) {
				t.Errorf("the delivery time is told as %s, sent was %s", d, ds[0].Body)
			}
			if err := b.Ack(t.Context(), ds)[0]; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// More than one batch can be due at the same time.
func TestManyDueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{Type: TopicDelay})
		at := time.Now().Add(time.Hour)
		for i := range 3*dueBatch + 1 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Append(nil, i), DeliverAt: at})
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if n := len(receiveAll(t, b, "t")); n != 3*dueBatch+1 {
			t.Errorf("%d arrived, want %d", n, 3*dueBatch+1)
		}
	})
}

func TestDelayRefused(t *testing.T) {
	b := open(t, Options{})
	putTopic(t, b, "delay", TopicConfig{Type: TopicDelay})
	putTopic(t, b, "normal", TopicConfig{})
	for name, c := range map[string]struct {
		m    tidegate.Message
		code tidegate.Code
	}{
		"too far ahead":          {tidegate.Message{Topic: "delay", DeliverAt: time.Now().Add(24*time.Hour + time.Minute)}, tidegate.CodeIllegalDeliveryTime},
		"to a normal topic":      {tidegate.Message{Topic: "normal", DeliverAt: time.Now().Add(time.Hour)}, tidegate.CodeMessagePropertyConflict},
		"normal to a DELAY one":  {tidegate.Message{Topic: "delay"}, tidegate.CodeMessagePropertyConflict},
		"ordered to a DELAY one": {tidegate.Message{Topic: "delay", MessageGroup: "g"}, tidegate.CodeMessagePropertyConflict},
	} {
		c.m.Body = []byte("x")
		r := send(t, b, &c.m)[0]
		if e, ok := errors.AsType[*tidegate.Error](r.Err); !ok || e.Code != c.code {
			t.Errorf("%s: %v, want %v", name, r.Err, c.code)
		}
	}
}

func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{Type: TopicDelay})
		putTopic(t, b, "other", TopicConfig{Type: TopicDelay})
		at := time.Now().Add(time.Minute)
		m := &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x"), DeliverAt: at}
		r := send(t, b, m)[0].Receipt
		if r.RecallHandle == "" || r.Queue != -1 {
			t.Fatalf("receipt %+v", r)
		}
		// A duplicate is answered with the first receipt, and not stored.
		if again := send(t, b, m)[0]; again.Err != nil || again.Receipt != r {
			t.Errorf("repeated: %+v, want %+v", again, r)
		}
		for topic, h := range map[string]string{"t": "nonsense", "other": r.RecallHandle} {
			if _, err := b.Recall(t.Context(), topic, h); !errors.Is(err, tidegate.ErrInvalid) {
				t.Errorf("%q of topic %s: %v", h, topic, err)
			}
		}
		if id, err := b.Recall(t.Context(), "t", r.RecallHandle); err != nil || id != "m" {
			t.Errorf("recalled %q, %v", id, err)
		}
		if _, err := b.Recall(t.Context(), "t", r.RecallHandle); !errors.Is(err, tidegate.ErrNotFound) {
			t.Errorf("recalled twice: %v", err)
		}
		// What was recalled can be sent again, and arrives once.
		second := send(t, b, m)[0]
		if second.Err != nil || second.Receipt == r {
			t.Errorf("sent again: %+v", second)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if _, err := b.Recall(t.Context(), "t", second.Receipt.RecallHandle); !errors.Is(err, tidegate.ErrNotFound) {
			t.Errorf("recalled after its time: %v", err)
		}
		// A duplicate after its time has come is one, too.
		if again := send(t, b, m)[0]; again.Err != nil || again.Receipt.Queue < 0 {
			t.Errorf("repeated after its time: %+v", again)
		}
		if n := len(receiveAll(t, b, "t")); n != 1 {
			t.Errorf("%d arrived, want 1", n)
		}
	})
}

// A topic is deleted while messages wait: they are gone, also for the next one of that name.
func TestDeletedTopicHasNoDelayedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{Type: TopicDelay})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Minute)})
		if err := b.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", TopicConfig{Type: TopicDelay})
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if n := len(receiveAll(t, b, "t")); n != 0 {
			t.Errorf("%d arrived", n)
		}
		if _, _, next, err := b.store.Due(time.Time{}, 0, 0); err != nil || !next.IsZero() {
			t.Errorf("something still waits until %v, %v", next, err)
		}
	})
}
