package held_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/held"
)

// An eager is a system and a link that delivers each message within the call of Grant.
type eager struct {
	feed    atomic.Pointer[held.Feed]
	opening time.Duration // how long Open takes, even if its ctx ends
	closing time.Duration // how long Close takes
	silent  bool          // it delivers nothing
	closed  atomic.Int32
}

func (e *eager) Open(_ context.Context, f *held.Feed) (held.Link, error) {
	<-time.After(e.opening)
	e.feed.Store(f)
	return e, nil
}

func (e *eager) Grant(n int) {
	for range n {
		if e.silent {
			return
		}
		e.feed.Load().Deliver(&tidegate.Delivery{Message: tidegate.Message{ID: "id", Topic: "orders", Body: []byte("0")}}, nil)
	}
}

func (e *eager) Settle(context.Context, []held.Settlement) []error { return nil }

func (e *eager) Close() {
	e.feed.Load().Lost(tidegate.ErrUnavailable) // has no effect any more
	<-time.After(e.closing)
	e.closed.Add(1)
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
			assert.NoError(t, table.Close(), "second Close")
		})
	}
}

// A link that opens after Close is closed at once.
func TestCloseDuringOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &eager{opening: 5 * time.Second, closing: time.Second}
		table := held.New(e, held.Options{})
		start := time.Now()
		time.AfterFunc(time.Second, func() { table.Close() })
		_, err := table.Receive(t.Context(), request("billing"))
		if wantError(t, "Receive", err, tidegate.ErrClosed); time.Since(start) != time.Second {
			t.Errorf("the receive ended after %v, want the time of Close", time.Since(start))
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.That(t, e.closed.Load() == 1, "the link is open after Close")
	})
}

// A receive that does not wait gets the messages that a new link brings within Options.Grace.
func TestGrace(t *testing.T) {
	inBubble(t, 1, held.Options{Grace: 50 * time.Millisecond}, func(t *testing.T, f *fake) {
		f.faults.openDelay, f.faults.deliverDelay = 100*time.Millisecond, 40*time.Millisecond
		q := request("billing")
		q.Wait = 0
		start := time.Now()
		d := one(t, f, q, "0", 1)
		assert.Equal(t, "the message came after", time.Since(start), 140*time.Millisecond)
		ack(t, f, d)
		start = time.Now()
		if ds := receive(t, f, q); len(ds) > 0 || time.Since(start) != 50*time.Millisecond {
			t.Errorf("received %s after %v, want nothing after 50ms", describe(ds), time.Since(start))
		}
	})
}

// A receive whose wait ends with a lease, or soon after, gets the message, which takes its time
// through the system.
func TestReceiveEndsWithALease(t *testing.T) {
	for _, more := range []time.Duration{0, 5 * time.Millisecond} {
		receiveEndsWithALease(t, more)
	}
}

func receiveEndsWithALease(t *testing.T, more time.Duration) {
	t.Helper()
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		f.faults.slow = func(held.Settlement) time.Duration { return 10 * time.Millisecond }
		q := request("billing")
		one(t, f, q, "0", 1)
		q.Wait = q.InvisibleDuration + more
		start := time.Now()
		one(t, f, q, "0", 2)
		assert.Equal(t, "the message came after", time.Since(start), 30*time.Second+10*time.Millisecond)
	})
}

// The messages in flight are bounded by number and by bytes. Settlements admit further messages.
func TestMemoryIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		opts    held.Options
		size    int
		atLeast int
		atMost  int
	}{
		"messages":     {held.Options{MaxHeld: 50}, 10, 50, 50},
		"bytes":        {held.Options{MaxHeldBytes: 1 << 20}, 32 << 10, 32, 32},
		"large bodies": {held.Options{MaxHeldBytes: 4 << 20}, 1 << 20, 4, 32}, // the first credit expects 64 KiB
	} {
		inBubble(t, 0, c.opts, func(t *testing.T, f *fake) {
			for range 200 {
				f.store(&tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: make([]byte, c.size)})
			}
			q := request("billing")
			q.Max = 32
			var all []*tidegate.Delivery
			for consumed := 0; consumed < 200; consumed += len(all) {
				all = nil
				for ds := receive(t, f, q); len(ds) > 0; ds = receive(t, f, q) {
					all = append(all, ds...)
				}
				if left := 200 - consumed; len(all) < min(c.atLeast, left) || len(all) > c.atMost {
					t.Fatalf("%s: %d messages were in flight, want %d to %d", name, len(all), c.atLeast, c.atMost)
				}
				ack(t, f, all...)
			}
		})
	}
}

// taken returns the number of messages of a group that a link has.
func (f *fake) taken(group string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.queues[[2]string{group, "orders"}].entries {
		if e.link != nil && !e.done {
			n++
		}
	}
	return n
}

// After receives that follow each other at once and get their maximum, the Table has the messages
// of one more receive. Slow receives leave them at the system, and unused ones return to it.
func TestQuickReceivesAskAhead(t *testing.T) {
	for pause, ahead := range map[time.Duration]int{0: 4, 4 * time.Millisecond: 4, 20 * time.Millisecond: 0, time.Second: 0} {
		inBubble(t, 100, held.Options{Linger: 10 * time.Millisecond}, func(t *testing.T, f *fake) {
			q := request("billing")
			q.Max = 4
			for n := range 3 {
				time.Sleep(pause)
				ds := receive(t, f, q)
				assert.MustThat(t, len(ds) == 4, "receive %d brought %d messages, want 4", n, len(ds))
			}
			synctest.Wait()
			got := f.taken("billing")
			assert.That(t, got == 12+ahead, "with pauses of %v the Table has %d messages, want 12 and %d ahead", pause, got, ahead)
			time.Sleep(3 * time.Second)
			if got := f.taken("billing"); got != 12 {
				t.Errorf("with pauses of %v the Table has %d messages after Idle, want the 12 delivered ones", pause, got)
			}
			assert.MustEqual(t, "a late receive brought messages", len(receive(t, f, q)), 4)
			synctest.Wait()
			assert.Equal(t, "after a late receive the Table has messages", f.taken("billing"), 16)
		})
	}
}
