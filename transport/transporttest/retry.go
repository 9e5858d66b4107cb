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
// the message that was sent and its last delivery. An empty reason matches every reason.
func (e *env) deadLetter(msg *tidegate.Message, last *tidegate.Delivery, reason string) {
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
		return
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
}
