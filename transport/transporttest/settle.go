package transporttest

import (
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

var settleCases = []testCase{
	{name: "AckEndsIt", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		e.mustAck(e.one())
		e.sleep(3 * e.server.Unit)
		e.none(e.request())
	}},
	{name: "AckMany", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("0"), e.message("1"), e.message("2"))
		var ds []*tidegate.Delivery
		for range 3 {
			ds = append(ds, e.one())
		}
		start := time.Now()
		if _, err := e.Transport.Settle(e.Context(), ds[1], transport.Verdict{Kind: transport.Retry}); err != nil {
			e.Fatal(err)
		}
		errs := e.Transport.Ack(e.Context(), ds)
		refused := !e.lacks(e.server.RefusesStaleHandles, "RefusesStaleHandles", "an Ack with an old handle may succeed and has no effect")
		if len(errs) != 3 || errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], tidegate.ErrInvalidHandle) && (refused || errs[1] != nil) {
			e.Errorf("got %v, want only the second refused", errs)
		}
		if d := e.retried(e.request(), start, 0); d.ID != ds[1].ID || d.Attempt != 2 {
			e.Errorf("delivered %s of %q, want attempt 2 of the second", describe([]*tidegate.Delivery{d}), d.ID)
		}
		e.none(e.request())
	}},
	{name: "InvisibleUntilTheTimeIsOver", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		start := time.Now()
		first := e.one()
		if u := first.InvisibleUntil; !u.IsZero() {
			if d := u.Sub(start); d < 2*e.server.Unit-2*time.Millisecond || d > 2*e.server.Unit+e.server.Slack {
				e.Errorf("InvisibleUntil is %v after the receive, want %v", d, 2*e.server.Unit)
			}
		}
		e.none(e.request())
		r := e.request()
		r.Wait = max(0, 2*e.server.Unit-e.server.Unit/4-time.Since(start))
		var second *tidegate.Delivery
		if ds := e.receive(r); len(ds) == 1 {
			second = ds[0]
			e.after(start, 2*e.server.Unit, "the message was redelivered")
		} else {
			second = e.again(e.request(), start, 2*e.server.Unit, "the message was redelivered")
		}
		if second.ID != first.ID || second.Attempt != 2 {
			e.Errorf("delivered %+v", second)
		}
		e.stale(first)
		e.mustAck(second)
	}},
	{name: "ChangeInvisibleDuration", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		first := e.one()
		e.sleep(e.server.Unit)
		changed := time.Now()
		before := *first
		handle, err := e.Transport.Extend(e.Context(), first, 3*e.server.Unit, false)
		if err != nil {
			e.Fatal(err)
		}
		if handle == "" || handle == first.Handle || first.Handle != before.Handle {
			e.Fatalf("handle %q replaces %q (before the call: %q); want another one, and d left alone", handle, first.Handle, before.Handle)
		}
		e.stale(first)
		if e.server.Capabilities.RepeatChange {
			changed = time.Now()
			if again, err := e.Transport.Extend(e.Context(), first, 3*e.server.Unit, true); again != handle || err != nil {
				e.Errorf("repeated, as after a lost response: %q, %v, want %q as before", again, err, handle)
			}
		}
		e.sleep(e.server.Unit + e.server.Unit/2) // past the first lease
		e.none(e.request())
		r := e.request()
		r.Wait = 2 * e.server.Unit
		second := e.again(r, changed, 3*e.server.Unit, "after a change the message was redelivered")
		if second.Attempt != 2 {
			e.Errorf("attempt %d, want 2", second.Attempt)
		}
		renewed := *first
		renewed.Handle = handle
		e.stale(&renewed)
		e.mustAck(second)
	}},
	{name: "ChangeAndAck", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		for range 3 {
			e.sleep(e.server.Unit)
			handle, err := e.Transport.Extend(e.Context(), d, 2*e.server.Unit, false)
			if err != nil {
				e.Fatal(err)
			}
			d.Handle = handle
		}
		e.mustAck(d)
		e.sleep(3 * e.server.Unit)
		e.none(e.request())
		e.stale(d)
	}},
	{name: "ChangeToShorter", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		start := time.Now()
		if _, err := e.Transport.Extend(e.Context(), d, e.server.Unit/2, false); err != nil {
			e.Fatal(err)
		}
		e.again(e.request(), start, e.server.Unit/2, "the message was redelivered")
	}},
	{name: "ChangeToNow", run: func(e *env) { // by a simple consumer, whose program has seen the message
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		start := time.Now()
		if _, err := e.Transport.Extend(e.Context(), d, 0, false); err != nil {
			e.Fatal(err)
		}
		again := e.again(e.request(), start, 0, "the message was redelivered")
		if again.Attempt != 2 {
			e.Errorf("attempt %d, want 2", again.Attempt)
		}
		e.stale(d)
		e.mustAck(again)
	}},
	{name: "GiveBack", run: func(e *env) {
		e.setup(settings.TopicNormal)
		for _, push := range []bool{true, false} {
			e.send(e.message("x"))
			r := e.request()
			r.Push = push
			d := e.oneOf(r)
			start := time.Now()
			if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Release}); err != nil {
				e.Fatal(err)
			}
			again := e.again(r, start, 0, "the released message was redelivered")
			want := d.Attempt + 1
			if e.lacks(!e.server.LacksCountedReleases, "LacksCountedReleases", "no release counts as an attempt") || push && e.server.Capabilities.Suspend {
				want = d.Attempt // it was not handled
			}
			if again.Attempt != want {
				e.Errorf("push %v: released attempt %d, got attempt %d, want %d", push, d.Attempt, again.Attempt, want)
			}
			e.stale(d)
			e.mustAck(again)
		}
	}},
	{name: "Snooze", needs: needSnooze, run: func(e *env) {
		e.setup(settings.TopicNormal)
		for _, push := range []bool{true, false} {
			e.send(e.message("x"))
			r := e.request()
			r.Push = push
			d := e.oneOf(r)
			failed := time.Now()
			if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Retry}); err != nil {
				e.Fatal(err)
			}
			r.Wait, r.InvisibleDuration = 2*e.server.Unit, e.server.Unit
			d = e.retried(r, failed, 0)
			for _, dur := range []time.Duration{0, e.server.Unit / 2, 3 * e.server.Unit / 2, 0} { // the third is longer than the lease
				start := time.Now()
				if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Snooze, Delay: dur}); err != nil {
					e.Fatal(err)
				}
				e.stale(d)
				if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Snooze, Delay: dur}); !errors.Is(err, tidegate.ErrInvalidHandle) {
					e.Errorf("Snooze with an old handle: %v, want ErrInvalidHandle", err)
				}
				d = e.oneOf(r)
				e.after(start, dur, "the snoozed message was redelivered")
				if d.Attempt != 2 { // of 3, which is more often than it was snoozed
					e.Errorf("push %v: attempt %d, want 2: snoozing does not count", push, d.Attempt)
				}
			}
			e.mustAck(d)
		}
	}},
	{name: "UnsupportedVerdicts", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		for _, k := range []transport.VerdictKind{transport.Snooze, transport.RetryTopic, transport.NegativeAck, 1 << 20} {
			if e.server.Capabilities.Verdicts.Has(k) {
				continue
			}
			_, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: k})
			if te, ok := errors.AsType[*tidegate.Error](err); !ok || te.Code != tidegate.CodeNotImplemented {
				e.Errorf("%v: %v, want the code %d", k, err, tidegate.CodeNotImplemented)
			}
		}
		e.mustAck(d)
	}},
	{name: "NegativeAck", needs: needReconsume, run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		for attempt := 2; attempt <= 5; attempt++ { // more often than the group's maximum of attempts, which does not count
			start := time.Now()
			mode := transport.Verdict{Kind: transport.NegativeAck, Delay: e.server.Unit}
			got, err := e.Transport.Settle(e.Context(), d, mode)
			if err != nil || got.Fate != transport.FateAgain || got.Delay <= 0 || got.Delay > e.server.Unit {
				e.Fatalf("%+v, %v; want a delivery after %v", got, err, e.server.Unit)
			}
			e.stale(d)
			if _, err := e.Transport.Settle(e.Context(), d, mode); !errors.Is(err, tidegate.ErrInvalidHandle) {
				e.Errorf("an old handle: %v, want ErrInvalidHandle", err)
			}
			q := e.request()
			q.Wait = 2 * e.server.Unit
			d = e.oneOf(q)
			e.after(start, e.server.Unit, "the message was redelivered")
			if d.Attempt != attempt {
				e.Errorf("attempt %d, want %d", d.Attempt, attempt)
			}
		}
		e.mustAck(d)
	}},
	{name: "SnoozeKeepsTheOrder", needs: needSnooze, run: func(e *env) {
		e.setup(settings.TopicFIFO)
		first, second := e.message("first"), e.message("second")
		first.MessageGroup, second.MessageGroup = "mg", "mg"
		e.send(first, second)
		d := e.one()
		start := time.Now()
		if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Snooze, Delay: e.server.Unit}); err != nil {
			e.Fatal(err)
		}
		e.none(e.request())
		r := e.request()
		r.Wait = 2 * e.server.Unit
		d = e.oneOf(r)
		e.after(start, e.server.Unit, "the snoozed message was redelivered")
		if d.ID != first.ID || d.Attempt != 1 {
			e.Errorf("received %s, want attempt 1 of the first", describe([]*tidegate.Delivery{d}))
		}
		e.mustAck(d)
		if d = e.one(); d.ID != second.ID {
			e.Errorf("received %s, want the second", describe([]*tidegate.Delivery{d}))
		}
	}},
	// The case ChangeInvisibleDuration tests the other properties.
	{name: "SuspendIsNoFailure", needs: needSuspend, run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		r := e.request()
		r.Push = true
		for range 5 { // more often than the group has attempts
			d := e.oneOf(r)
			if d.Attempt != 1 {
				e.Fatalf("attempt %d, want 1", d.Attempt)
			}
			for range 4 {
				h, err := e.Transport.Extend(e.Context(), d, e.server.Unit, false)
				if err != nil {
					e.Fatal(err)
				}
				d.Handle = h
			}
			if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Release}); err != nil {
				e.Fatal(err)
			}
		}
	}},
	// A handler that ends its process may do so after extensions of its lease.
	{name: "ExtendedLeaseCounts", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		r := e.request()
		r.Push = true
		d := e.oneOf(r)
		start := time.Now()
		for range 2 {
			h, err := e.Transport.Extend(e.Context(), d, 2*e.server.Unit, false)
			if err != nil {
				e.Fatal(err)
			}
			d.Handle = h
		}
		r.Wait = 2 * e.server.Unit
		for time.Since(start) < 4*e.server.Unit+lateness { // the retry schedule may delay it
			if ds := e.receive(r); len(ds) > 0 {
				if after := time.Since(start); len(ds) > 1 || ds[0].Attempt != 2 || after < 2*e.server.Unit-100*time.Millisecond {
					e.Errorf("received %s after %v, want attempt 2 after the extended lease of %v", describe(ds), after, 2*e.server.Unit)
				}
				e.mustAck(ds[0])
				return
			}
		}
		e.Errorf("the message was not redelivered after its extended lease")
	}},
}

// stale checks that every settlement rejects d's handle and changes nothing.
func (e *env) stale(d *tidegate.Delivery) {
	e.Helper()
	if e.lacks(e.server.RefusesStaleHandles, "RefusesStaleHandles", "an Ack with an old handle may succeed and has no effect") {
		if err := e.ack(d); err != nil && !errors.Is(err, tidegate.ErrInvalidHandle) {
			e.Errorf("Ack with an old handle: %v, want none or ErrInvalidHandle", err)
		}
		return
	}
	if err := e.ack(d); !errors.Is(err, tidegate.ErrInvalidHandle) {
		e.Errorf("Ack with an old handle: %v, want ErrInvalidHandle", err)
	}
	if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Retry}); !errors.Is(err, tidegate.ErrInvalidHandle) {
		e.Errorf("Retry with an old handle: %v, want ErrInvalidHandle", err)
	}
	if h, err := e.Transport.Extend(e.Context(), d, e.server.Unit, false); !errors.Is(err, tidegate.ErrInvalidHandle) {
		e.Errorf("ChangeInvisibleDuration with an old handle: %q, %v, want ErrInvalidHandle", h, err)
	}
}
