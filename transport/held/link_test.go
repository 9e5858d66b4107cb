package held_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/held"
)

// An eager is a system and a link that delivers each message within the call of Grant.
type eager struct {
	feed    *held.Feed
	closing time.Duration // how long Close takes
	closed  atomic.Int32
}

func (e *eager) Open(_ context.Context, f *held.Feed) (held.Link, error) {
	e.feed = f
	return e, nil
}

func (e *eager) Grant(n int) {
	for range n {
		e.feed.Deliver(&tidegate.Delivery{Message: tidegate.Message{ID: "id", Topic: "orders", Body: []byte("0")}}, nil)
	}
}

func (e *eager) Settle(context.Context, []held.Settlement) []error { return nil }

func (e *eager) Close() {
	e.feed.Lost(tidegate.ErrUnavailable) // has no effect any more
	time.Sleep(e.closing)
	e.closed.Add(1)
}

// The Table holds no lock during a call of its link, so the link may call it.
func TestLinkCallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := held.New(&eager{}, held.Options{})
		defer table.Close() //nolint:errcheck // it returns nil
		q := request("billing")
		q.Max = 3
		ds := receive(t, table, q)
		if len(ds) != 3 {
			t.Errorf("received %s, want 3 messages", describe(ds))
		}
		ack(t, table, ds...)
	})
}

// Close waits until all links are closed, also the one that is closed for lack of receives.
func TestCloseWaits(t *testing.T) {
	for _, idle := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			e := &eager{closing: 5 * time.Second}
			table := held.New(e, held.Options{})
			ack(t, table, receive(t, table, request("billing"))...)
			time.Sleep(idle)
			if err := table.Close(); err != nil || e.closed.Load() != 1 {
				t.Errorf("Close returned %v with %d closed links, want 1", err, e.closed.Load())
			}
			if err := table.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
		})
	}
}

// A receive that comes while its link closes waits for a new one.
func TestReceiveDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &eager{closing: 5 * time.Second}
		table := held.New(e, held.Options{})
		defer table.Close() //nolint:errcheck // it returns nil
		ack(t, table, receive(t, table, request("billing"))...)
		time.Sleep(3 * time.Second) // the link closes after 2 s
		start := time.Now()
		if ds := receive(t, table, request("billing")); len(ds) != 1 || time.Since(start) != 4*time.Second {
			t.Errorf("received %s after %v, want a message from a link that opens after the close", describe(ds), time.Since(start))
		}
	})
}
