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
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// inBubble runs a test with a fake that has the topic orders and the groups billing and, with an
// order, ledger. Its messages have the bodies 0, 1, 2 and so on.
func inBubble(t *testing.T, messages int, opts held.Options, run func(t *testing.T, f *fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(opts)
		t.Cleanup(func() { f.Close() })
		f.topics["orders"] = settings.TopicNormal
		f.groups["billing"] = transport.ConsumerSettings{MaxAttempts: 3}
		f.groups["ledger"] = transport.ConsumerSettings{MaxAttempts: 3, FIFO: true}
		f.fill(messages)
		run(t, f)
	})
}

func (f *fake) fill(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range n {
		f.store(&tidegate.Message{ID: fmt.Sprint("id", i), Topic: "orders", MessageGroup: fmt.Sprint("mg", i%2), Body: fmt.Append(nil, i)})
	}
}

func request(group string) transport.ReceiveRequest {
	return transport.ReceiveRequest{Group: group, Topic: "orders", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: 30 * time.Second, Wait: 10 * time.Second}
}

func receive(t *testing.T, r transport.Receiver, q transport.ReceiveRequest) []*tidegate.Delivery {
	t.Helper()
	ds, err := r.Receive(t.Context(), q)
	assert.MustThat(t, err == nil, "Receive: %v", err)
	return ds
}

// one receives one message and checks it.
func one(t *testing.T, r transport.Receiver, q transport.ReceiveRequest, body string, attempt int) *tidegate.Delivery {
	t.Helper()
	ds := receive(t, r, q)
	assert.MustThat(t, len(ds) == 1 && string(ds[0].Body) == body && ds[0].Attempt == attempt,
		"received %s, want attempt %d of %s", describe(ds), attempt, body)
	return ds[0]
}

func describe(ds []*tidegate.Delivery) (s string) {
	for _, d := range ds {
		s += fmt.Sprintf("[%s attempt %d]", d.Body, d.Attempt)
	}
	return s
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	assert.That(t, errors.Is(err, want), "%s: %v, want %v", what, err, want)
}

func ack(t *testing.T, s transport.Settler, ds ...*tidegate.Delivery) {
	t.Helper()
	assert.NoError(t, errors.Join(s.Ack(t.Context(), ds)...), "Ack")
}

func TestLostLink(t *testing.T) {
	inBubble(t, 2, held.Options{}, func(t *testing.T, f *fake) {
		d := one(t, f, request("billing"), "0", 1)
		one(t, f, request("billing"), "1", 1)
		var err error
		start, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			_, err = f.Receive(t.Context(), request("billing"))
		}()
		time.Sleep(time.Second)
		f.disconnect(false)
		<-done
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Endpoint != "fake" || e.Op != "ReceiveMessage" || time.Since(start) != time.Second {
			t.Errorf("the waiting receive ended after %v with %v, want the error of the link", time.Since(start), err)
		}
		err = f.Ack(t.Context(), []*tidegate.Delivery{d})[0]
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || !e.NotConnected || tidegate.Classify(err) != tidegate.ClassTransient {
			t.Errorf("Ack after the loss: %v, want NotConnected", err)
		}
		synctest.Wait() // the Ack has opened a new link
		wantError(t, "Ack after the next link", f.Ack(t.Context(), []*tidegate.Delivery{d})[0], tidegate.ErrInvalidHandle)
		again := one(t, f, request("billing"), "0", 1) // the system counts no attempt
		ack(t, f, again)
	})
}

// A receive with Repeat ends the waiting receive with its AttemptID, and no other; without an
// AttemptID it does nothing.
func TestRepeatEndsTheReceive(t *testing.T) {
	inBubble(t, 0, held.Options{}, func(t *testing.T, f *fake) {
		took := make(chan time.Duration, 3)
		for _, id := range []string{"", "a", "b"} {
			go func() {
				q := request("billing")
				q.AttemptID = id
				start := time.Now()
				receive(t, f, q)
				took <- time.Since(start)
			}()
		}
		time.Sleep(time.Second)
		q := request("billing")
		q.Repeat = true
		for _, id := range []string{"", "a"} {
			q.AttemptID = id
			ds := receive(t, f, q)
			assert.That(t, len(ds) == 0, "received %s", describe(ds))
		}
		if first, second, third := <-took, <-took, <-took; first != time.Second || second != 10*time.Second || third != second {
			t.Errorf("the receives ended after %v, %v and %v, want 1s, 10s and 10s", first, second, third)
		}
	})
}

// A link that reports its end without a reason also fails the receives.
func TestLostWithoutReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &eager{silent: true}
		table := held.New(e, held.Options{})
		defer table.Close()
		time.AfterFunc(time.Second, func() { e.feed.Load().Lost(nil) })
		_, err := table.Receive(t.Context(), request("billing"))
		wantError(t, "Receive", err, tidegate.ErrUnavailable)
	})
}

// While there is no connection, settlements try to open a link once a second.
func TestSettlementsReopenTheLink(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		d := one(t, f, request("billing"), "0", 1)
		f.disconnect(true)
		opens := f.opens
		for range 30 {
			time.Sleep(100 * time.Millisecond)
			err := f.Ack(t.Context(), []*tidegate.Delivery{d})[0]
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.MustThat(t, ok && e.NotConnected, "Ack: %v, want NotConnected", err)
		}
		if opens = f.opens - opens; opens != 3 {
			t.Errorf("%d attempts to open a link in 3 s, want 3", opens)
		}
	})
}

func TestLostHandleEndsWithItsLease(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		d := one(t, f, request("billing"), "0", 1)
		f.disconnect(true)
		time.Sleep(30 * time.Second)
		wantError(t, "Ack", f.Ack(t.Context(), []*tidegate.Delivery{d})[0], tidegate.ErrInvalidHandle)
	})
}

func TestReceiveAwaitsConnection(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		f.disconnect(true)
		_, err := f.Receive(t.Context(), request("billing"))
		e, ok := errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && e.NotConnected, "Receive: %v, want NotConnected", err)
		ctx, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), 3500*time.Millisecond)
		defer cancel()
		opens := f.opens
		_, err = f.Receive(ctx, request("billing"))
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || !e.NotConnected || !errors.Is(err, context.DeadlineExceeded) || f.opens-opens != 4 {
			t.Errorf("after %d attempts to open: %v, want 4 and the cause of the ctx", f.opens-opens, err)
		}
		go func() {
			time.Sleep(2500 * time.Millisecond)
			f.mu.Lock()
			f.cut = false
			f.mu.Unlock()
		}()
		start := time.Now()
		ds, err := f.Receive(transport.AwaitConnection(t.Context()), request("billing"))
		assert.That(t, len(ds) == 1 && err == nil && time.Since(start) == 3*time.Second,
			"received %s, %v after %v", describe(ds), err, time.Since(start))
	})
}

// A system that never opens a link ends the receives after 10 s.
func TestOpenHangs(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		f.faults.openDelay = time.Hour
		start := time.Now()
		_, err := f.Receive(t.Context(), request("billing"))
		if wantError(t, "Receive", err, tidegate.ErrUnavailable); time.Since(start) != 10*time.Second {
			t.Errorf("Receive returned after %v, want 10s", time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err = f.Receive(ctx, request("billing"))
		if wantError(t, "Receive", err, context.DeadlineExceeded); time.Since(start) != time.Second {
			t.Errorf("Receive returned %v after its start, want the end of its ctx", time.Since(start))
		}
	})
}

// other returns a second client of the system.
func (f *fake) other(t *testing.T, opts held.Options) *held.Table {
	opts.Settings = f.settings
	table := held.New(f, opts)
	t.Cleanup(func() { table.Close() })
	return table
}

// take receives n messages.
func take(t *testing.T, r transport.Receiver, q transport.ReceiveRequest, n int) (all []*tidegate.Delivery) {
	t.Helper()
	for len(all) < n {
		q.Max = n - len(all)
		ds := receive(t, r, q)
		assert.MustThat(t, len(ds) != 0, "received %s, want %d messages", describe(all), n)
		all = append(all, ds...)
	}
	return all
}

// Buffered messages return to the system 2 s after the last receive, while others are in flight.
// Messages of a FIFO group stay until nothing is in flight, because their order would be lost.
func TestIdleReturnsMessages(t *testing.T) {
	for group, c := range map[string]struct {
		first, others int // messages
		after         time.Duration
	}{"billing": {4, 3, 2 * time.Second}, "ledger": {2, 2, 7 * time.Second}} {
		inBubble(t, 4, held.Options{}, func(t *testing.T, f *fake) {
			q := request(group)
			q.Push = true
			ds := take(t, f, q, c.first)
			for _, d := range ds[1:] { // into the buffer
				assert.Must(t, assert.Err(f.Settle(t.Context(), d, transport.Verdict{Kind: transport.Release})))
			}
			start := time.Now()
			time.AfterFunc(5*time.Second, func() { ack(t, f, ds[0]) })
			other := take(t, f.other(t, held.Options{}), q, c.others)
			got := time.Since(start)
			assert.That(t, got == c.after, "%s: another client received the messages after %v, want %v", group, got, c.after)
			released := ""
			for _, s := range f.settled {
				if s.outcome == held.Released {
					released += s.id + " "
				}
			}
			if want := "id3 id2 id1 "; group == "billing" && released != want {
				t.Errorf("released %s, want the last first, because systems put them at the front: %s", released, want)
			}
			slices.SortFunc(other, func(a, b *tidegate.Delivery) int { return strings.Compare(a.ID, b.ID) })
			if got, want := describe(other), "[1 attempt 1][2 attempt 1][3 attempt 1]"; !strings.HasPrefix(want, got) {
				t.Errorf("%s: another client received %s", group, got)
			}
		})
	}
}

// Close returns leased and buffered messages at once, without a failed attempt.
func TestCloseReturnsMessages(t *testing.T) {
	inBubble(t, 3, held.Options{}, func(t *testing.T, f *fake) {
		q := request("billing")
		take(t, f, q, 2)
		f.Table.Close()
		start := time.Now()
		got := take(t, f.other(t, held.Options{}), q, 3)
		if time.Since(start) != 0 || slices.ContainsFunc(got, func(d *tidegate.Delivery) bool { return d.Attempt != 1 }) {
			t.Errorf("after Close received %s after %v", describe(got), time.Since(start))
		}
	})
}

// The receiver may change its delivery. The next delivery of the message is not affected.
func TestDeliveriesAreCopies(t *testing.T) {
	inBubble(t, 0, held.Options{}, func(t *testing.T, f *fake) {
		f.store(&tidegate.Message{ID: "id", Topic: "orders", MessageGroup: "mg", Body: []byte("0"), Keys: []string{"k"}, Properties: map[string]string{"p": "v"}})
		for attempt := range 2 {
			d := one(t, f, request("ledger"), "0", attempt+1)
			assert.That(t, d.Keys[0] == "k" && d.Properties["p"] == "v", "delivered %+v", d.Message)
			d.Body[0], d.Keys[0], d.Properties["p"] = 'x', "x", "x"
			assert.NoError(t, assert.Err(f.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})))
		}
	})
}

// A receive waits for further messages up to a quarter of Linger after each, at most Linger, and
// does not wait if it has all that were asked for.
func TestLinger(t *testing.T) {
	for _, c := range []struct {
		messages, limit int
		gap, after      time.Duration
		want            int
	}{
		{messages: 40, limit: 32, gap: 10 * time.Microsecond, want: 32, after: 310 * time.Microsecond},
		{messages: 3, limit: 32, gap: 400 * time.Microsecond, want: 3, after: 1800 * time.Microsecond}, // 0.8 ms and a quarter of 4 ms
		{messages: 40, limit: 32, gap: 900 * time.Microsecond, want: 5, after: 4 * time.Millisecond},
		{messages: 40, limit: 32, gap: 3 * time.Millisecond, want: 1, after: time.Millisecond},
		{messages: 1, limit: 1, want: 1},
	} {
		inBubble(t, c.messages, held.Options{Linger: 4 * time.Millisecond}, func(t *testing.T, f *fake) {
			f.faults.gap = c.gap
			q := request("billing")
			q.Max = c.limit
			start := time.Now()
			ds := receive(t, f, q)
			got := time.Since(start)
			assert.That(t, len(ds) == c.want && got == c.after, "%+v: received %d messages after %v", c, len(ds), got)
		})
	}
}

// Receives in a row ask for messages about once for half of their maximum.
func TestGrantsAreFew(t *testing.T) {
	inBubble(t, 640, held.Options{}, func(t *testing.T, f *fake) {
		f.faults.gap = 2 * time.Millisecond // each receive returns one message
		q := request("billing")
		q.Max = 32
		for range 640 {
			ack(t, f, receive(t, f, q)...)
		}
		assert.That(t, f.grants <= 640/16+1, "%d grants for 640 receives of up to 32 messages", f.grants)
	})
}

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

// A negatively acknowledged message stays in the process for its delay. Then the system delivers it
// again, with the next attempt number, also beyond the maximum of attempts. In a FIFO group it stays
// for good, before its successors.
func TestNegativeAck(t *testing.T) {
	inBubble(t, 2, held.Options{NegativeAcks: true}, func(t *testing.T, f *fake) {
		f.groups["billing"] = transport.ConsumerSettings{MaxAttempts: 2}
		nack := func(d *tidegate.Delivery, delay time.Duration) {
			t.Helper()
			got, err := f.Settle(t.Context(), d, transport.Verdict{Kind: transport.NegativeAck, Delay: delay})
			assert.That(t, err == nil && got == transport.RetryResult{Fate: transport.FateAgain, Delay: delay}, "%+v, %v", got, err)
		}
		start := time.Now()
		q := request("billing")
		q.Wait = time.Minute
		nack(one(t, f, q, "0", 1), 30*time.Second)
		nack(one(t, f, q, "1", 1), 0)
		ack(t, f, one(t, f, q, "1", 2))
		d := one(t, f, q, "0", 2)
		assert.Equal(t, "the message came again after", time.Since(start), 30*time.Second)
		nack(d, 0)
		ack(t, f, one(t, f, q, "0", 3))
		if got, want := fmt.Sprint(f.settled), "[{id1 4} {id1 0} {id0 4} {id0 4} {id0 0}]"; got != want {
			t.Errorf("settled %s, want %s", got, want)
		}
		_, err := f.Settle(t.Context(), d, transport.Verdict{Kind: transport.NegativeAck})
		wantCode(t, "a second NegativeAck", err, tidegate.CodeInvalidReceiptHandle)

		f.groups["ledger"] = transport.ConsumerSettings{MaxAttempts: 2, FIFO: true}
		q.Group, start, f.settled = "ledger", time.Now(), nil
		nack(one(t, f, q, "0", 1), 10*time.Second)
		ack(t, f, one(t, f, q, "1", 1))
		ack(t, f, one(t, f, q, "0", 2))
		if got, want := fmt.Sprint(f.settled), "[{id1 0} {id0 0}]"; got != want || time.Since(start) != 10*time.Second {
			t.Errorf("settled %s after %v, want %s after 10s", got, time.Since(start), want)
		}
	})
}

// A Table of a system without negative acknowledgements does not take them.
func TestNoNegativeAck(t *testing.T) {
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		d := one(t, f, request("billing"), "0", 1)
		_, err := f.Settle(t.Context(), d, transport.Verdict{Kind: transport.NegativeAck})
		wantCode(t, "NegativeAck", err, tidegate.CodeNotImplemented)
		ack(t, f, d)
	})
}

func TestBadDurations(t *testing.T) {
	inBubble(t, 1, held.Options{NegativeAcks: true}, func(t *testing.T, f *fake) {
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
		for _, kind := range []transport.VerdictKind{transport.Snooze, transport.NegativeAck} {
			_, err = f.Settle(t.Context(), d, transport.Verdict{Kind: kind, Delay: -1})
			wantCode(t, kind.String(), err, protocol.CodeIllegalInvisibleTime)
		}
		ack(t, f, d)
	})
}

func wantCode(t *testing.T, what string, err error, code tidegate.Code) {
	t.Helper()
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.Code == code, "%s: %v, want %v", what, err, code)
}

// suiteServer describes a Table over the fake. The suite leaves out:
//   - NegativeAck, RetryResult and RetryBySchedule: capabilities of servers with a retry schedule;
//   - PushTimeoutsTakeTheSchedule: the message is retried when the lease ends, as in RocketMQ 5.2.
func suiteServer() transporttest.Server {
	s := transporttest.AllGuarantees()
	s.Priorities, s.LiteTopics = false, false // as Artemis
	s.TimeoutsTakeTheSchedule, s.Recall = false, false
	s.Virtual = true
	s.Capabilities = transport.Capabilities{RepeatReceive: true, Suspend: true, Verdicts: transport.Snooze, IdempotentDeadLetter: true}
	return s
}

func TestSuite(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults faults
	}{
		{"responds at once", faults{}},
		{"takes its time", faults{
			openDelay: 2 * time.Millisecond, deliverDelay: time.Millisecond,
			slow: func(held.Settlement) time.Duration { return time.Millisecond },
		}},
		{"pushes more than it was asked for", faults{excess: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := suiteServer()
			server.FullReceives = c.faults.excess == 0 // a receive may return the excess alone
			transporttest.Run(t, func(*testing.T) transporttest.Fixture {
				f := newFake(held.Options{Grace: 6 * time.Millisecond})
				f.faults = c.faults
				return f.fixture()
			}, server)
		})
	}
}
