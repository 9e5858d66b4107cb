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
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// RocketMQ: sending retry and throttling: "If the consumer group is required to consume from an
// earlier moment, the storage pressure on the queue surges and throttling is triggered"
func TestColdReadsThrottleSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, stored = 1000, 8000
		b := open(t, broker.Options{MinInvisibleDuration: 1, Pressure: settings.Pressure{MaxColdReads: 300 * size, ColdDistance: 500 * size}})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "other", settings.Topic{})
		send := func(topic string) error {
			return send(t, b, &tidegate.Message{Topic: topic, Body: make([]byte, size)})[0].Err
		}
		left := map[string]int{}
		get := func(group string, n int) {
			t.Helper()
			for n > 0 {
				ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: "t", Max: min(n, 32), InvisibleDuration: time.Hour})
				if err := errors.Join(b.Ack(t.Context(), ds)...); err != nil {
					t.Fatal(err)
				}
				n -= len(ds)
				left[group] -= len(ds)
			}
		}
		get("late", 0)
		for range stored {
			if err := send("t"); err != nil {
				t.Fatal(err)
			}
			left["idle"]++
			left["late"]++
		}
		receive(t, b, transport.ReceiveRequest{Group: "idle", Topic: "t", InvisibleDuration: time.Hour})

		// A group that lags and reads nothing, or little, rejects nothing.
		time.Sleep(time.Minute)
		for range 20 {
			get("late", 20)
			time.Sleep(time.Second)
			if err := send("t"); err != nil {
				t.Fatalf("a group reads 20 messages a second: %v", err)
			}
			left["late"]++
		}

		// It catches up, three times as fast as the limit.
		refused, taken, ended := 0, 0, 0
		for left["late"] > 0 {
			get("late", min(100, left["late"]))
			time.Sleep(100 * time.Millisecond)
			switch err := send("t"); {
			case err == nil:
				taken++
				left["late"]++
				if refused > 0 && ended == 0 {
					ended = left["late"]
				}
			case !errors.Is(err, tidegate.ErrThrottled):
				t.Fatal(err)
			default:
				refused++
				e, _ := errors.AsType[*tidegate.Error](err)
				for _, w := range []string{`cold reads of "t" is`, "the limit is 300000 bytes/s", "again at 240000 bytes/s"} {
					if !strings.Contains(err.Error(), w) {
						t.Fatalf("the text does not contain %q: %v", w, err)
					}
				}
				if e.RetryAfter <= 0 {
					t.Errorf("no push-back: %v", err)
				}
			}
			if left["late"] < 20 {
				break
			}
			if err := send("other"); err != nil {
				t.Fatalf("another topic: %v", err)
			}
		}
		if refused < 50 || ended == 0 || ended > 500 {
			t.Errorf("%d rejected, %d accepted, accepted again when %d were left; want most rejected until about 400 are left", refused, taken, ended)
		}
	})
}

// If consumers stop while they catch up, the limit does not reject sends permanently.
func TestColdReadsThatStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 1000
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		send := func() error {
			return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, size)})[0].Err
		}
		for range 3000 {
			if err := send(); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.SetLimits(t.Context(), settings.Limits{Pressure: settings.Pressure{MaxColdReads: 50 * size, ColdDistance: 100 * size}}); err != nil {
			t.Fatal(err)
		}
		for range 1000 / 32 {
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Hour})
		}
		if err := send(); !errors.Is(err, tidegate.ErrThrottled) {
			t.Fatalf("a thousand at once: %v", err)
		}
		if ths := b.Throttles(); len(ths) == 0 || ths[0].Limit != "cold reads" || !ths[0].On {
			t.Errorf("limits: %+v", ths)
		}
		time.Sleep(time.Minute)
		if err := send(); err != nil {
			t.Errorf("a minute after the last read: %v", err)
		}
	})
}

// A group at the end of its queue is rewound. Sends are rejected while it reads old messages, until
// it is near the end again. RocketMQ: sending retry and throttling: "a consumer group starts
// consuming messages from the maximum offset of the queue. If the consumer group is required to
// consume from an earlier moment, the storage pressure on the queue surges and throttling is
// triggered"
func TestRewindThrottlesSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, stored, each = 1000, 6000, 100
		b := open(t, broker.Options{MinInvisibleDuration: 1, Pressure: settings.Pressure{MaxColdReads: 300 * size, ColdDistance: 500 * size}})
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1})
		send := func() error {
			return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, size)})[0].Err
		}
		consume := func(n int) (got int) {
			for got < n {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: min(n-got, 32), InvisibleDuration: time.Hour})
				if len(ds) == 0 {
					return got
				}
				if err := errors.Join(b.Ack(t.Context(), ds)...); err != nil {
					t.Fatal(err)
				}
				got += len(ds)
			}
			return got
		}
		for range stored / each { // the group keeps up
			for range each {
				if err := send(); err != nil {
					t.Fatal(err)
				}
			}
			consume(each)
			time.Sleep(time.Second)
		}
		if _, err := b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true}); err != nil {
			t.Fatal(err)
		}
		refusedAt, takenAt := 0, 0 // how far behind the group was at the first rejection, and when sends were taken again
		for left := stored; left > 0; {
			n := consume(each)
			left -= n
			time.Sleep(100 * time.Millisecond)
			switch err := send(); {
			case err == nil:
				if refusedAt > 0 && takenAt == 0 {
					takenAt = left
				}
				left++
			case !errors.Is(err, tidegate.ErrThrottled) || !strings.Contains(err.Error(), "cold reads"):
				t.Fatal(err)
			case refusedAt == 0:
				refusedAt = left
			case takenAt > 0:
				t.Errorf("refused again when %d are left", left)
			}
			if n == 0 || left < each/2 {
				break
			}
		}
		if refusedAt < stored*3/4 || takenAt == 0 || takenAt > 500 {
			t.Errorf("rejected from a lag of %d messages on, accepted again at %d; want soon after the rewind, and within 500", refusedAt, takenAt)
		}
	})
}
