package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A blocked message group is still blocked after a restart, in every state of its head, also if the
// group has no later message. Retention keeps the head.
func TestBlockedAcrossARestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait      time.Duration                        // after the head has blocked
		meanwhile func(t *testing.T, b *broker.Broker) // after that, and before the restart
		blocked   int64
	}{
		"waiting": {0, func(*testing.T, *broker.Broker) {}, 1},
		"ready":   {3 * time.Second, func(*testing.T, *broker.Broker) {}, 1},
		"in flight": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			one(t, b, "g", "t")
		}, 1},
		"released": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			serve(b).Release(t.Context(), []*tidegate.Delivery{one(t, b, "g", "t")})
			synctest.Wait()
		}, 1},
		"negatively acknowledged": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			if err := serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Minute); err != nil {
				t.Fatal(err)
			}
		}, 1},
		"done": {3 * time.Second, func(t *testing.T, b *broker.Broker) {
			ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "g", "t")})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Hour)}})
				putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedBlock, NegativeAck: settings.NegativeAck{MaxRedeliveries: 1}})
				mustSend(t, b, &tidegate.Message{ID: "0", Topic: "t", MessageGroup: "a", Body: []byte("x")})
				if _, err := b.Retry(t.Context(), one(t, b, "g", "t"), 3*time.Second, ""); err != nil {
					t.Fatal(err)
				}
				elapse(c.wait)
				c.meanwhile(t, b)
				before := subscriptionOf(t, b, "g")
				if before.BlockedGroups != c.blocked {
					t.Fatalf("before: %+v", before)
				}
				b = reopen(t, b, fs)
				synctest.Wait()
				after := subscriptionOf(t, b, "g")
				if after.BlockedGroups != c.blocked || after.Ready != before.Ready || after.Inflight != before.Inflight || after.WaitingRetry != before.WaitingRetry {
					t.Fatalf("after the restart: %+v, before %+v", after, before)
				}
				if c.blocked == 0 {
					return
				}
				for i := 1; i <= 2; i++ {
					mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", MessageGroup: "a", Body: []byte("x")})
				}
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Second}) // skips them
				elapse(90 * time.Minute)
				for i := range 3 {
					d := one(t, b, "g", "t")
					if d.ID != fmt.Sprint(i) {
						t.Fatalf("%s was delivered, want %d", d.ID, i)
					}
					ackDeliveries(t, b, []*tidegate.Delivery{d})
				}
				if s := subscriptionOf(t, b, "g"); s.BlockedGroups != 0 || s.Overtaken != 0 || s.Backlog != (status.Backlog{}) {
					t.Errorf("at last: %+v", s)
				}
			})
		})
	}
}
