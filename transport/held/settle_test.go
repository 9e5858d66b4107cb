package held_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
)

var errRefused = &tidegate.Error{Err: tidegate.ErrUnavailable, MaybeStored: true, Message: "the response was lost"}

// A settlement whose response is lost leaves the handle valid until the end of its lease, and can
// be repeated.
func TestSettlementIsLost(t *testing.T) {
	for _, carriedOut := range []bool{false, true} {
		inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
			d := one(t, f, request("billing"), "0", 1)
			f.faults.settle = func(held.Settlement) error { return errRefused }
			f.faults.carriedOut = func(held.Settlement) bool { return carriedOut }
			err := f.Ack(t.Context(), []*tidegate.Delivery{d})[0]
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && e.MaybeStored && e.Op == "AckMessage", "Ack: %v, want the error of the link with MaybeStored", err)
			f.mu.Lock()
			f.faults.settle = nil
			f.mu.Unlock()
			ack(t, f, d)
			wantError(t, "Ack again", f.Ack(t.Context(), []*tidegate.Delivery{d})[0], tidegate.ErrInvalidHandle)
			assert.That(t, fmt.Sprint(f.settled) == "[{id0 0}]", "settled %v, want one acceptance", f.settled)
		})
	}
}

// One settlement of a delivery at a time: another one fails with a transient error, and a lease
// that ends meanwhile waits for the result.
func TestSettlementUnderWay(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		d := one(t, f, request("billing"), "0", 1)
		f.faults.slow = func(held.Settlement) time.Duration { return time.Minute }
		done := make(chan struct{})
		go func() {
			defer close(done)
			ack(t, f, d)
		}()
		synctest.Wait()
		_, change := f.Extend(t.Context(), d, time.Second, false)
		_, retry := f.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})
		_, dead := f.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})
		_, snooze := f.Settle(t.Context(), d, transport.Verdict{Kind: transport.Snooze})
		for what, err := range map[string]error{
			"Ack": f.Ack(t.Context(), []*tidegate.Delivery{d})[0], "ChangeInvisibleDuration": change, "Retry": retry, "DeadLetter": dead,
			"Snooze": snooze,
		} {
			assert.That(t, tidegate.Classify(err) == tidegate.ClassTransient && !errors.Is(err, tidegate.ErrInvalidHandle), "%s while an Ack is under way: %v, want a transient error", what, err)
		}
		<-done
		assert.That(t, len(f.settled) == 1, "settled %v, want the Ack alone", f.settled)
	})
}

func TestSettlementEndsWithItsContext(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		d := one(t, f, request("billing"), "0", 1)
		f.faults.slow = func(held.Settlement) time.Duration { return time.Minute }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantError(t, "Ack", f.Ack(ctx, []*tidegate.Delivery{d})[0], context.DeadlineExceeded)
		f.mu.Lock()
		f.faults.slow = nil
		f.mu.Unlock()
		ack(t, f, d)
	})
}

// Settlements that no caller waits for are repeated after 1 s, 2 s, 4 s, up to 60 s.
func TestBackgroundIsRepeated(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		one(t, f, request("billing"), "0", 1)
		start := time.Now()
		var got []string
		f.faults.settle = func(held.Settlement) error {
			got = append(got, time.Since(start).String())
			if len(got) < 9 {
				return errRefused
			}
			return nil
		}
		q := request("billing")
		q.Wait = time.Hour
		one(t, f, q, "0", 2)
		want := "30s 31s 33s 37s 45s 1m1s 1m33s 2m33s 3m33s"
		assert.That(t, strings.Join(got, " ") == want, "settled at %v, want %s", got, want)
	})
}

// The Table accepts the messages that a filter of tags does not select.
func TestTagFilter(t *testing.T) {
	inBubble(t, 0, held.Options{}, func(t *testing.T, f *fake) {
		for _, tag := range []string{"a", "b", "", "c", "a"} {
			f.store(&tidegate.Message{ID: tag, Topic: "orders", Tag: tag, Body: []byte(tag)})
		}
		q := request("billing")
		q.Filter.Expression = "c || b"
		for _, tag := range []string{"b", "c"} {
			one(t, f, q, tag, 1)
		}
		ds := receive(t, f, q)
		assert.That(t, len(ds) == 0, "received %s", describe(ds))
		slices.SortFunc(f.settled, func(a, b settled) int { return strings.Compare(a.id, b.id) })
		assert.That(t, fmt.Sprint(f.settled) == "[{ 0} {a 0} {a 0}]", "settled %v, want the acceptance of the three others", f.settled)
	})
}

// One Ack settles deliveries of several links.
func TestAckOfSeveralLinks(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		a, b := one(t, f, request("billing"), "0", 1), one(t, f, request("ledger"), "0", 1)
		invalid := &tidegate.Delivery{Handle: "of another client"}
		errs := f.Ack(t.Context(), []*tidegate.Delivery{a, invalid, b})
		assert.That(t, errs[0] == nil && errors.Is(errs[1], tidegate.ErrInvalidHandle) && errs[2] == nil, "Ack: %v, want an error for the second delivery only", errs)
	})
}

// Half of MaxHeld messages wait in the process. The next ones return to the system a second later,
// which delivers them again in the same attempt.
func TestSnoozesAreBounded(t *testing.T) {
	inBubble(t, 6, held.Options{MaxHeld: 4}, func(t *testing.T, f *fake) {
		start := time.Now()
		snooze := func(body string, d time.Duration) {
			t.Helper()
			assert.NoError(t, assert.Err(f.Settle(t.Context(), one(t, f, request("billing"), body, 1), transport.Verdict{Kind: transport.Snooze, Delay: d})))
		}
		snooze("0", 15*time.Second)
		snooze("1", 15*time.Second)
		snooze("2", time.Hour)
		for _, body := range []string{"3", "4", "5"} {
			ack(t, f, one(t, f, request("billing"), body, 1))
		}
		q := request("billing")
		q.Wait = time.Minute
		d := one(t, f, q, "2", 1)
		assert.Equal(t, "the third message returned after", time.Since(start), time.Second)
		ack(t, f, d)
		if one(t, f, q, "0", 1); time.Since(start) != 15*time.Second {
			t.Errorf("the snoozed message came after %v", time.Since(start))
		}
		if got, want := fmt.Sprint(f.settled), "[{id3 0} {id4 0} {id5 0} {id2 1} {id2 0}]"; got != want {
			t.Errorf("settled %s, want %s", got, want)
		}
	})
}

// A message that returns to the system for want of places is not asked for again before, and the
// messages of a FIFO group wait in the process in any number.
func TestSnoozesOfAFIFOGroupWaitHere(t *testing.T) {
	inBubble(t, 2, held.Options{MaxHeld: 2}, func(t *testing.T, f *fake) {
		f.groups["ledger"] = transport.ConsumerSettings{MaxAttempts: -1, FIFO: true}
		start := time.Now()
		q := request("ledger")
		q.Wait = time.Minute
		for _, body := range []string{"0", "1"} { // of two message groups
			assert.NoError(t, assert.Err(f.Settle(t.Context(), one(t, f, q, body, 1), transport.Verdict{Kind: transport.Snooze, Delay: 30 * time.Second})))
		}
		if one(t, f, q, "0", 1); time.Since(start) != 30*time.Second || len(f.settled) > 0 {
			t.Errorf("the message came after %v, settled %v", time.Since(start), f.settled)
		}
	})
}

func TestBadDurations(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		q := request("billing")
		d := one(t, f, q, "0", 1)
		q.InvisibleDuration = 0
		_, err := f.Receive(t.Context(), q)
		wantCode(t, "Receive", err, protocol.CodeIllegalInvisibleTime)
		_, err = f.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: -1})
		wantCode(t, "Retry", err, protocol.CodeIllegalInvisibleTime)
		_, err = f.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule})
		wantCode(t, "Retry by the server's schedule", err, tidegate.CodeNotImplemented)
		_, err = f.Extend(t.Context(), d, -1, false)
		wantCode(t, "ChangeInvisibleDuration", err, protocol.CodeIllegalInvisibleTime)
		_, err = f.Settle(t.Context(), d, transport.Verdict{Kind: transport.Snooze, Delay: -1})
		wantCode(t, "Snooze", err, protocol.CodeIllegalInvisibleTime)
		ack(t, f, d)
	})
}

func wantCode(t *testing.T, what string, err error, code tidegate.Code) {
	t.Helper()
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.Code == code, "%s: %v, want %v", what, err, code)
}
