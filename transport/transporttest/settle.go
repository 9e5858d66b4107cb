package transporttest

import (
	"bytes"
	"errors"
	"maps"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
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

var retryCases = []testCase{
	{name: "RetryAfter", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		for i, delay := range []time.Duration{e.server.Unit / 2, 0} {
			start := time.Now()
			if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: delay}); err != nil {
				e.Fatal(err)
			}
			old := d
			d = e.retried(e.request(), start, delay) // a parked receive is woken by it
			if d.ID != old.ID || d.Attempt != i+2 {
				e.Errorf("delivered attempt %d of %q, want %d of %q", d.Attempt, d.ID, i+2, old.ID)
			}
			e.stale(old)
		}
		e.mustAck(d)
		e.none(e.request())
	}},
	{name: "RetryOutlivesTheLease", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		start := time.Now()
		if _, err := e.Transport.Settle(e.Context(), e.one(), transport.Verdict{Kind: transport.Retry, Delay: 4 * e.server.Unit}); err != nil {
			e.Fatal(err)
		}
		if !e.server.LacksExactRetries {
			e.sleep(2*e.server.Unit + e.server.Unit/2)
			e.none(e.request())
		}
		r := e.request()
		r.Wait = 2 * e.server.Unit
		e.retried(r, start, 4*e.server.Unit)
	}},
	{name: "AttemptsExhausted", run: func(e *env) {
		e.setup(settings.TopicNormal)
		msg := e.message("doomed")
		msg.Tag, msg.Keys, msg.Properties = "tag", []string{"key"}, map[string]string{"p": "v"}
		e.send(msg)
		var last *tidegate.Delivery
		failed := time.Now()
		for i := range 3 {
			last = e.retried(e.request(), failed, 0)
			failed = time.Now()
			if last.Attempt != i+1 {
				e.Fatalf("attempt %d, want %d", last.Attempt, i+1)
			}
			if _, err := e.Transport.Settle(e.Context(), last, transport.Verdict{Kind: transport.Retry}); err != nil {
				e.Fatal(err)
			}
		}
		e.none(e.request())
		e.deadLetter(msg, last, "")
	}},
	{name: "RetryResult", needs: needRetryResult, run: func(e *env) {
		e.setup(settings.TopicNormal)
		msg := e.message("doomed")
		e.send(msg)
		var last *tidegate.Delivery
		for _, want := range []transport.RetryResult{
			{Fate: transport.FateAgain, Delay: e.server.Unit}, {Fate: transport.FateAgain}, {Fate: transport.FateDeadLetter},
		} {
			last = e.one()
			if got, err := e.Transport.Settle(e.Context(), last, transport.Verdict{Kind: transport.Retry, Delay: want.Delay, Reason: "no such customer: Müller"}); err != nil || got != want {
				e.Fatalf("attempt %d: %+v, %v; want %+v", last.Attempt, got, err, want)
			}
		}
		e.deadLetter(msg, last, "no such customer: Müller")
	}},
	{name: "RetryBySchedule", needs: needRetryResult, run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		for _, want := range e.ladder() {
			start := time.Now()
			if got, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule}); err != nil || got != (transport.RetryResult{Fate: transport.FateAgain, Delay: want}) {
				e.Fatalf("attempt %d: %+v, %v; want the next after %v", d.Attempt, got, err, want)
			}
			e.sleep(want - e.server.Unit/4)
			e.none(e.request())
			d = e.one()
			e.after(start, want, "the message was redelivered")
		}
		e.mustAck(d)
	}},
	{name: "TimeoutsExhaustAttempts", run: func(e *env) {
		const attempts = 2
		e.createTopic(e.topic, settings.TopicNormal)
		e.createGroup(e.group, transport.ConsumerSettings{MaxAttempts: attempts, Retry: backoff.Steps(e.ladder())})
		msg := e.message("ignored")
		e.send(msg)
		r := e.request()
		start := time.Now()
		last := e.oneOf(r)
		r.Wait = 3 * e.server.Unit // longer than the lease: the redelivery can take a round trip
		for range attempts - 1 {
			last = e.again(r, start, 2*e.server.Unit, "the message was redelivered")
			start = time.Now()
		}
		r.Wait = 3 * e.server.Unit // beyond the end of the last lease, when the dead letter is written
		if ds := e.receive(r); len(ds) != 0 {
			e.Fatalf("after %d attempts received %s", attempts, describe(ds))
		}
		e.sleep(e.server.Unit) // a server that shortens the wait may end it with the lease
		e.deadLetter(msg, last, "")
	}},
	{name: "PushTimeoutsTakeTheSchedule", needs: needLadder, run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		r := e.request()
		r.Push = true
		start := time.Now()
		e.oneOf(r)
		r.Wait = 2 * e.server.Unit
		e.sleep(2 * e.server.Unit)
		if d := e.oneOf(r); d.Attempt != 2 {
			e.Errorf("attempt %d, want 2", d.Attempt)
		}
		e.after(start, 3*e.server.Unit, "after the invisible time and the retry schedule's first step the message was redelivered")
	}},
	{name: "DeadLetter", run: func(e *env) {
		e.setup(settings.TopicNormal)
		msg := e.message("hopeless")
		msg.Tag, msg.Keys, msg.Properties = "tag", []string{"key"}, map[string]string{"p": "v"}
		e.send(msg)
		d := e.one()
		if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no such customer: Müller"}); err != nil {
			e.Fatal(err)
		}
		if e.server.Capabilities.IdempotentDeadLetter {
			if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "again"}); err != nil {
				e.Errorf("a second time: %v", err)
			}
		}
		e.stale(d)
		e.sleep(3 * e.server.Unit)
		e.none(e.request())
		e.deadLetter(msg, d, "no such customer: Müller")
	}},
	{name: "DeadLetterTooLate", needs: needStale, run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		first := e.one()
		e.sleep(2 * e.server.Unit)
		second := e.one()
		for _, reason := range []string{"", "hopeless"} {
			if _, err := e.Transport.Settle(e.Context(), first, transport.Verdict{Kind: transport.DeadLetter, Reason: reason}); !errors.Is(err, tidegate.ErrInvalidHandle) {
				e.Errorf("DeadLetter for %q with the handle of the delivery before: %v, want ErrInvalidHandle", reason, err)
			}
		}
		e.mustAck(second)
	}},
}

// letter receives a dead letter, which may not be there at once.
func (e *env) letter(r transport.ReceiveRequest) *tidegate.Delivery {
	e.Helper()
	if !e.lacks(e.server.DeadLettersAtOnce, "DeadLettersAtOnce", "the topic of dead letters may be missing for some seconds") {
		return e.oneOf(r)
	}
	source := e.request() // a receive of the group is when RocketMQ moves the message
	for start := time.Now(); time.Since(start) < lateness; e.none(source) {
		ds, err := e.Transport.Receive(e.Context(), r)
		if err != nil && !errors.Is(err, tidegate.ErrTopicNotFound) {
			e.Fatal(err)
		}
		if len(ds) == 1 {
			return ds[0]
		}
	}
	e.Fatal("there is no dead letter")
	return nil
}

// deadLetter receives the only dead letter of the group and compares it with
// the message that was sent and its last delivery, and returns it. An empty reason matches every
// reason.
func (e *env) deadLetter(msg *tidegate.Message, last *tidegate.Delivery, reason string) *tidegate.Delivery {
	e.Helper()
	undertaker := e.name("undertaker")
	// On RocketMQ a dead letter continues the count of attempts: a group with fewer attempts than
	// the message had would make a dead letter of it again before the first delivery.
	e.createGroup(undertaker, transport.ConsumerSettings{MaxAttempts: 17, Retry: backoff.Steps(e.ladder())})
	r := transport.ReceiveRequest{
		Group: undertaker, Topic: tidegate.DeadLetterTopic(e.group), Queue: transport.AnyQueue, Max: 1,
		InvisibleDuration: 2 * e.server.Unit, Wait: e.server.Unit,
	}
	d := e.letter(r)
	if d.ID != msg.ID || !bytes.Equal(d.Body, msg.Body) || d.Tag != msg.Tag || len(d.Keys) != len(msg.Keys) {
		e.Errorf("dead letter %+v\nof message %+v", d.Message, *msg)
	}
	e.mustAck(d)
	e.none(r)
	if e.lacks(e.server.DeadLetterOrigins, "DeadLetterOrigins", "the dead letter names no origin and no reason") {
		if got, ok := d.DeadLetter(); ok {
			e.Errorf("the dead letter names its origin: %+v", got)
		}
		return d
	}
	got, ok := d.DeadLetter()
	want := tidegate.DeadLetter{
		Topic: e.topic, MessageID: msg.ID, Queue: last.Queue, Offset: last.Offset, Group: e.group,
		Attempts: last.Attempt, Reason: reason,
	}
	if reason == "" {
		if got.Reason == "" {
			e.Error("the dead letter has no reason")
		}
		want.Reason = got.Reason
	}
	if e.lacksPosition(last.Queue, last.Offset) {
		want.Queue, want.Offset = got.Queue, got.Offset
	}
	if !ok || got != want {
		e.Errorf("origin %+v, want %+v", got, want)
	}
	rest := maps.Clone(d.Properties)
	maps.DeleteFunc(rest, func(k, _ string) bool { return tidegate.ReservedProperty(k) })
	if !maps.Equal(rest, msg.Properties) {
		e.Errorf("properties %v, want those of the message: %v", d.Properties, msg.Properties)
	}
	return d
}
