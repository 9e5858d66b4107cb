package broker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A group has the number of messages that its filter skipped, with the time from which it counts,
// and the delivery in flight that began first, also after an extension of its lease.
func TestGroupHasFilteredAndHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		opened := time.Now()
		b := open(t, broker.Options{})
		putTopic(t, b, "orders", settings.Topic{Queues: 1})
		for _, tag := range []string{"paid", "open", "open", "paid", "open"} {
			mustSend(t, b, &tidegate.Message{Topic: "orders", Tag: tag, Body: []byte("x")})
		}
		time.Sleep(time.Minute)
		begin := time.Now()
		ds := receive(t, b, transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 9, InvisibleDuration: time.Hour, Filter: tidegate.Filter{Expression: "paid"}})
		if len(ds) != 2 {
			t.Fatalf("received %d", len(ds))
		}
		time.Sleep(time.Minute)
		if _, err := b.Extend(t.Context(), ds[0], 2*time.Hour, false); err != nil {
			t.Fatal(err)
		}
		g, err := b.Group("billing")
		if err != nil || len(g.Topics) != 1 {
			t.Fatalf("%+v, %v", g, err)
		}
		s := g.Topics[0]
		if s.Filtered != 3 || !s.CountsSince.Equal(opened) {
			t.Errorf("skipped %d since %v, want 3 since %v", s.Filtered, s.CountsSince, opened)
		}
		until := begin.Add(time.Hour)
		if s.Held != nil && !s.Held.Until.Equal(until) {
			until = begin.Add(time.Minute + 2*time.Hour) // of the other message, which began at the same time
		}
		if want := (status.Holding{Messages: 2, Since: begin, Until: until}); s.Held == nil || *s.Held != want {
			t.Errorf("held %+v, want %+v", s.Held, want)
		}
	})
}
