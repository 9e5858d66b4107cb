package broker_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// RocketMQ: sending retry and throttling: "If the number of messages piling up exceeds the
// threshold, throttling is triggered to alleviate burden on the downstream system"
func TestBacklogThrottlesSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "orders", settings.Topic{MaxBacklog: settings.Limit{Messages: 1000}})
		var accepted, refused int
		var err error
		batch := make([]*tidegate.Message, 100)
		for range 11 {
			for i := range batch {
				batch[i] = &tidegate.Message{Topic: "orders", Body: []byte("x")}
			}
			for _, r := range send(t, b, batch...) {
				if r.Err == nil {
					accepted++
				} else {
					refused++
					err = r.Err
				}
			}
		}
		if accepted != 1000 || refused != 100 {
			t.Fatalf("%d accepted, %d refused, want 1000 and 100", accepted, refused)
		}
		e, ok := errors.AsType[*tidegate.Error](err)
		if !ok || !errors.Is(err, tidegate.ErrThrottled) || e.ReplyCode() != 530 || e.RetryAfter != 0 {
			t.Errorf("the refusal is %#v", err)
		}
		for _, w := range []string{"530 TOO_MANY_REQUESTS", "topic backlog messages", `"orders"`, "is 1000", "limit is 1000", "again at 800"} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("the text does not contain %q: %v", w, err)
			}
		}

		// Draining to 801 is not enough, to 800 is.
		consume := func(n int) {
			t.Helper()
			for n > 0 {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "orders", Max: min(n, 32)})
				for _, err := range b.Ack(t.Context(), ds) {
					if err != nil {
						t.Fatal(err)
					}
				}
				n -= len(ds)
				time.Sleep(100 * time.Millisecond)
			}
		}
		consume(199)
		r := send(t, b, &tidegate.Message{Topic: "orders", Body: []byte("x")})[0]
		if !errors.Is(r.Err, tidegate.ErrThrottled) {
			t.Fatalf("a send at a backlog of 801: %v", r.Err)
		}
		// About 300 messages a second were drained, and one is too many.
		if e, _ := errors.AsType[*tidegate.Error](r.Err); e.RetryAfter < time.Millisecond || e.RetryAfter > 10*time.Millisecond {
			t.Errorf("push-back is %v", e.RetryAfter)
		}
		if th, err := b.Topic("orders"); err != nil || th.Throttle == nil || th.Throttle.Value != 801 || th.Backlog.Messages != 801 {
			t.Errorf("the topic reports %+v, %v", th.Throttle, err)
		}
		consume(1)
		if r := send(t, b, &tidegate.Message{Topic: "orders", Body: []byte("x")})[0]; r.Err != nil {
			t.Errorf("a backlog of 800 is refused: %v", r.Err)
		}
	})
}

func TestGroupBacklogAndBytesThrottle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{MaxBacklog: settings.Limit{Bytes: 1000}})
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "free", settings.Topic{MaxBacklog: settings.Limit{Messages: 1 << 40}})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 999)}, &tidegate.Message{Topic: "t", Body: []byte("x")})
		r := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0]
		if !errors.Is(r.Err, tidegate.ErrThrottled) || !strings.Contains(r.Err.Error(), "topic backlog bytes") {
			t.Errorf("by bytes: %v", r.Err)
		}
		putGroup(t, b, "slow", settings.Group{MaxBacklog: settings.Limit{Messages: 2}})
		receive(t, b, transport.ReceiveRequest{Group: "slow", Topic: "free"})
		mustSend(t, b, &tidegate.Message{Topic: "free", Body: make([]byte, 2000)}, &tidegate.Message{Topic: "free", Body: []byte("x")})
		r = send(t, b, &tidegate.Message{Topic: "free", Body: []byte("x")})[0]
		if !errors.Is(r.Err, tidegate.ErrThrottled) || !strings.Contains(r.Err.Error(), `group backlog messages of "slow"`) {
			t.Errorf("by group: %v", r.Err)
		}
		putGroup(t, b, "slow", settings.Group{}) // lifted while running
		mustSend(t, b, &tidegate.Message{Topic: "free", Body: []byte("x")})
	})
}
