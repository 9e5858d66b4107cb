package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A message that is consumed again can become a dead letter again, also if the process ends. It
// leaves the group permanently then.
func TestRewoundMessageDiesAgain(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		for round := 1; round <= 3; round++ {
			failDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true}))
			assert.MustEqual(t, "dead letters in round", len(receiveAll(t, b, "%DLQ%g")), round)
			assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Offsets: map[int]int64{0: 0}})))
			if round == 2 {
				b = reopen(t, b, fs)
			}
		}
	})
}

// A rewind on a large backlog makes sends wait (RocketMQ: sending retry and throttling), and one to
// the end frees them; neither is mistaken for consuming.
func TestRewindThrottles(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}})
		for range 12 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}))
			time.Sleep(time.Second)
		}
		assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})))
		r := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0]
		if e, ok := errors.AsType[*tidegate.Error](r.Err); !ok || !errors.Is(r.Err, tidegate.ErrThrottled) || e.RetryAfter < 3*time.Second || e.RetryAfter > 6*time.Second {
			t.Errorf("sent to a rewound topic: %v", r.Err) // 4 too many, drained at 1 a second
		}
		assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Latest: true})))
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		rate, _ := subscriptions(b)[0].Drained(time.Now())
		assert.That(t, rate <= 1.5, "skipping counted as draining: %v a second", rate)
	})
}

func TestRewindRejects(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 2})
	putGroup(t, b, "g", settings.Group{})
	for want, call := range map[string]func() ([]status.QueueRewind, error){
		"40403": func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "h", "t", status.Position{Latest: true})
		},
		"40402": func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "g", "u", status.Position{Latest: true})
		},
		"give one": func() ([]status.QueueRewind, error) { return b.Rewind(t.Context(), "g", "t", status.Position{}) },
		`["earliest" `: func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "g", "t", status.Position{Latest: true, Earliest: true})
		},
		"queue 2 does not exist": func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "g", "t", status.Position{Offsets: map[int]int64{2: 0}})
		},
		"give 0 to 0": func() ([]status.QueueRewind, error) {
			return b.Rewind(t.Context(), "g", "t", status.Position{Offsets: map[int]int64{1: 1}})
		},
	} {
		_, err := call()
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "%v; want %s", err, want)
	}
	if g, _ := b.Group("h"); g.Name != "" {
		t.Error("a rewind created a group")
	}
	// A group that never received begins at the requested position.
	mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Latest: true})))
	assert.Equal(t, "received", len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})), 0)
	// An empty list of offsets is the same in every form.
	done, err := b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true, Offsets: map[int]int64{}})
	assert.That(t, err == nil && len(done) == 2, "%+v, %v", done, err)
}

func ackDeliveriesNow(t *testing.T, b *broker.Broker, ds []*tidegate.Delivery) {
	t.Helper()
	for _, err := range b.Ack(t.Context(), ds) {
		assert.Must(t, err)
	}
}

// A group is rewound while its topic gets more queues.
func TestRewindWhileATopicGrows(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		growQueues(t, b, "t", 3)
		for i := range 9 {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
		}
		for _, to := range []status.Position{{Latest: true}, {Earliest: true}, {Offsets: map[int]int64{2: 1}}} {
			assert.NoError(t, assert.Err(b.Rewind(t.Context(), "g", "t", to)))
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second})
		assert.That(t, len(ds) == 8, "%d messages of 8 are delivered", len(ds))
	})
}

// RocketMQ: sending retry and throttling: "If the consumer group is required to consume from an
// earlier moment, the storage pressure on the queue surges and throttling is triggered"
func TestColdReadsThrottleSends(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
				assert.Must(t, errors.Join(b.Ack(t.Context(), ds)...))
				n -= len(ds)
				left[group] -= len(ds)
			}
		}
		get("late", 0)
		for range stored {
			assert.Must(t, send("t"))
			left["idle"]++
			left["late"]++
		}
		receive(t, b, transport.ReceiveRequest{Group: "idle", Topic: "t", InvisibleDuration: time.Hour})

		// A group that lags and reads nothing, or little, rejects nothing.
		time.Sleep(time.Minute)
		for range 20 {
			get("late", 20)
			time.Sleep(time.Second)
			assert.Must(t, send("t"), "a group reads 20 messages a second")
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
					assert.MustThat(t, strings.Contains(err.Error(), w), "the text does not contain %q: %v", w, err)
				}
				assert.That(t, e.RetryAfter > 0, "no push-back: %v", err)
			}
			if left["late"] < 20 {
				break
			}
			assert.Must(t, send("other"), "another topic")
		}
		if refused < 50 || ended == 0 || ended > 500 {
			t.Errorf("%d rejected, %d accepted, accepted again when %d were left; want most rejected until about 400 are left", refused, taken, ended)
		}
	})
}

// A group at the end of its queue is rewound. Sends are rejected while it reads old messages, until
// it is near the end again. RocketMQ: sending retry and throttling: "a consumer group starts
// consuming messages from the maximum offset of the queue. If the consumer group is required to
// consume from an earlier moment, the storage pressure on the queue surges and throttling is
// triggered"
func TestRewindThrottlesSends(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
				assert.Must(t, errors.Join(b.Ack(t.Context(), ds)...))
				got += len(ds)
			}
			return got
		}
		for range stored / each { // the group keeps up
			for range each {
				assert.Must(t, send())
			}
			consume(each)
			time.Sleep(time.Second)
		}
		assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})))
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
		assert.That(t, refusedAt >= stored*3/4 && takenAt != 0 && takenAt <= 500,
			"rejected from a lag of %d messages on, accepted again at %d; want soon after the rewind, and within 500", refusedAt, takenAt)
	})
}
