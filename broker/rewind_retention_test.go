package broker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A rewind during a search of retention for consumed messages: either they are removed before, and
// the rewind reports that they are gone, or they are delivered again. None is lost.
func TestRewindWhileRetentionPlans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Consumed: true}})
		const n = 100
		sendN(t, b, "t", n, 1)
		for range 4 {
			ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
		}
		release := holdWrites(b) // for which the plan waits: it needs the end of the queue
		elapse(2 * retention.Pause)
		done := make(chan []status.QueueRewind)
		go func() {
			q, err := b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})
			if err != nil {
				t.Error(err)
			}
			done <- q
		}()
		synctest.Wait()
		release()
		q := <-done
		elapse(2 * retention.Pause)
		var got int64
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})
			if len(ds) == 0 {
				break
			}
			got += int64(len(ds))
		}
		if s := subscriptionOf(t, b, "g"); len(q) != 1 || q[0].To+got != n || s.Overtaken != 0 {
			t.Errorf("%d were delivered after %+v; %d were removed before their delivery", got, q, s.Overtaken)
		}
	})
}

// Messages that a rewind skips or drops are removed soon, even if no other event starts retention.
func TestRewindAheadStartsRetention(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		retention          settings.Retention
		inflight           int
		before, afterwards int64
	}{
		"consumed by all": {settings.Retention{Time: -1, Consumed: true}, 0, 10, 0},
		"kept in flight":  {settings.Retention{Time: -1, Bytes: 40}, 2, 6, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1})
				putGroup(t, b, "g", settings.Group{})
				if _, err := b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true}); err != nil {
					t.Fatal(err)
				}
				sendN(t, b, "t", 10, 10)
				for range c.inflight {
					one(t, b, "g", "t")
				}
				putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: c.retention})
				elapse(10 * time.Second)
				if n := stored(t, b, "t"); n != c.before {
					t.Fatalf("%d messages at first, want %d", n, c.before)
				}
				if _, err := b.Rewind(t.Context(), "g", "t", status.Position{Latest: true}); err != nil {
					t.Fatal(err)
				}
				elapse(2 * retention.Pause)
				if n := stored(t, b, "t"); n != c.afterwards {
					t.Errorf("%d messages after the rewind, want %d", n, c.afterwards)
				}
			})
		})
	}
}
