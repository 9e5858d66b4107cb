package broker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// The age of a message counts from its send while it is in flight, waits for its retry, or was
// never received, also after a restart.
func TestOldestAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		send := func() { mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")}) }
		ages := func(oldest, undelivered time.Duration) {
			t.Helper()
			synctest.Wait()
			if s := serve(b).Stats().Groups[0]; s.OldestMS != oldest.Milliseconds() || s.UndeliveredMS != undelivered.Milliseconds() {
				t.Errorf("the oldest is %d ms old, the oldest undelivered %d ms; want %v, %v", s.OldestMS, s.UndeliveredMS, oldest, undelivered)
			}
		}
		receive := func(n int) []*tidegate.Delivery {
			return receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: n, InvisibleDuration: time.Hour, Push: true})
		}
		send()
		time.Sleep(10 * time.Second)
		send()
		time.Sleep(10 * time.Second)
		first := receive(2)
		send()
		ages(20*time.Second, 0)
		time.Sleep(5 * time.Second)
		ages(25*time.Second, 5*time.Second)
		if _, err := b.Settle(t.Context(), first[0], transport.Verdict{Kind: transport.Retry, Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		ages(25*time.Second, 5*time.Second)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
		ages(25*time.Second, 5*time.Second)
		if err := errors.Join(b.Ack(t.Context(), first[1:])...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + 5*time.Second)
		retried := receive(32) // it, and the third one
		ages(time.Hour+30*time.Second, 0)
		if err := errors.Join(b.Ack(t.Context(), retried)...); err != nil {
			t.Fatal(err)
		}
		ages(0, 0)
	})
}

// Here the threshold is how long they have been piling up.
//
// RocketMQ: sending retry and throttling: "If the number of messages piling up exceeds the
// threshold, throttling is triggered to alleviate burden on the downstream system"
func TestAgeThrottlesSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "t", settings.Topic{MaxBacklog: settings.Limit{Age: settings.Duration(10 * time.Second)}})
		putTopic(t, b, "u", settings.Topic{})
		putGroup(t, b, "strict", settings.Group{MaxBacklog: settings.Limit{Age: settings.Duration(5 * time.Second)}})
		send := func(topic string) error {
			return send(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})[0].Err
		}
		refused := func(topic string, words ...string) {
			t.Helper()
			err := send(topic)
			if !errors.Is(err, tidegate.ErrThrottled) {
				t.Fatalf("a send to %s: %v", topic, err)
			}
			for _, w := range words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the text does not contain %q: %v", w, err)
				}
			}
		}
		taken := func(topic string) {
			t.Helper()
			if err := send(topic); err != nil {
				t.Fatal(err)
			}
		}
		// Without consumers all messages of the topic count.
		for range 10 { // one a second
			taken("t")
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		refused("t", `topic backlog age of "t" is 11s`, "the limit is 10s", "again at 8s")

		// The oldest is in flight: still rejected. Consumed down to 8 s: taken.
		ack := func(ds []*tidegate.Delivery) {
			t.Helper()
			if err := errors.Join(b.Ack(t.Context(), ds)...); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		get := func(group, topic string, n int) []*tidegate.Delivery {
			ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: topic, Max: n, InvisibleDuration: time.Hour})
			slices.SortFunc(ds, func(x, y *tidegate.Delivery) int { return x.StoredAt.Compare(y.StoredAt) })
			return ds
		}
		ds := get("g", "t", 32)
		if len(ds) != 10 {
			t.Fatalf("%d received", len(ds))
		}
		refused("t")
		ack(ds[:3])
		refused("t") // 8.2 s
		ack(ds[3:4])
		taken("t")

		// A group's own limit.
		taken("u")
		get("strict", "u", 1)
		time.Sleep(6 * time.Second)
		refused("u", `group backlog age of "strict" is 6s`, "the limit is 5s")
		putGroup(t, b, "strict", settings.Group{}) // lifted while running
		taken("u")
		if _, err := b.PutTopic(t.Context(), "u", settings.Topic{MaxBacklog: settings.Limit{Age: 1}}); err == nil || !strings.Contains(err.Error(), "max_backlog.age is 1ns") {
			t.Errorf("an age of 1 ns: %v", err)
		}
	})
}
