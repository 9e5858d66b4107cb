package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A group that reaches the end of a queue over removed messages is done with all of them: none is
// left in its backlog that would reject sends.
func TestHoleUpToTheEndIsNoBacklog(t *testing.T) {
	t.Parallel()
	holes := map[string]func(t *testing.T, b *broker.Broker){
		"purged": func(t *testing.T, b *broker.Broker) {
			if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "dead"}); err != nil || done.Purged != 3 {
				t.Fatalf("%+v, %v", done, err)
			}
		},
		"sent back": func(t *testing.T, b *broker.Broker) {
			if done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "dead"}); err != nil || done.Redriven != 3 {
				t.Fatalf("%+v, %v", done, err)
			}
		},
	}
	for name, take := range holes {
		for from := range int64(2) {
			t.Run(fmt.Sprint(name, " ", from), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					fs := vfs.NewMem()
					b := open(t, broker.Options{Dir: "data"}.On(fs))
					putTopic(t, b, "t", settings.Topic{Queues: 1})
					putTopic(t, b, "dead", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Bytes: 30}, DuplicateWindow: -1})
					putGroup(t, b, "g", settings.Group{})
					putAddress(t, b, "t", settings.Address{DeadLetterAddress: new("dead")})
					for i := range 3 {
						kill(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("0123456789")})
					}
					putGroup(t, b, "reader", settings.Group{})
					if _, err := b.Rewind(t.Context(), "reader", "dead", status.Position{Offsets: map[int]int64{0: from}}); err != nil {
						t.Fatal(err)
					}
					take(t, b)
					expectMessages(t, receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "dead"}), "")
					for range 2 {
						if got := subscriptionOf(t, b, "reader").Backlog; got != (status.Backlog{}) {
							t.Errorf("the backlog is %+v", got)
						}
						mustSend(t, b, &tidegate.Message{Topic: "dead", Body: make([]byte, 25)})
						ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "dead", Max: 32}))
						b = reopen(t, b, fs)
					}
				})
			})
		}
	}
}

// The same over corrupt messages.
func TestDamageUpToTheEndIsNoBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		sendN(t, b, "t", 3, 10)
		b = reopen(t, b, fs) // the latest messages are in memory too
		for offset := int64(1); offset < 3; offset++ {
			corruptMessage(t, b, "t", 0, offset)
		}
		ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
		expectMessages(t, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}), "")
		if got := subscriptionOf(t, b, "g").Backlog; got != (status.Backlog{}) || serve(b).Stats().Damaged == 0 {
			t.Errorf("the backlog is %+v; %d messages were found damaged", got, serve(b).Stats().Damaged)
		}
	})
}
