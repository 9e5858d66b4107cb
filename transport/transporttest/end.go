package transporttest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

var errEnough = errors.New("the caller has enough")

var endCases = []testCase{
	{name: "CancelledReceiveTakesNothing", run: func(e *env) {
		e.setup(settings.TopicNormal)
		ctx, cancel := context.WithCancelCause(e.Context())
		start := time.Now()
		wait := later(func() {
			e.sleep(e.server.Unit / 2)
			cancel(errEnough)
		})
		ds, err := e.Transport.Receive(ctx, e.request())
		e.after(start, e.server.Unit/2, "the cancelled receive returned")
		wait()
		if len(ds) != 0 || !errors.Is(err, errEnough) {
			e.Fatalf("got %s, %v; want the cause of the context", describe(ds), err)
		}
		e.send(e.message("x"))
		start = time.Now()
		if e.lacks(e.server.CancelledReceivesEnd, "CancelledReceivesEnd", "the message may come as attempt 2 after its invisible duration") {
			e.mustAck(e.again(e.request(), start, 0, "the message came"))
			return
		}
		if d := e.one(); d.Attempt != 1 {
			e.Errorf("attempt %d, want 1: the cancelled receive had taken it", d.Attempt)
		}
		e.after(start, 0, "the next receive returned")
	}},
	{name: "CancelledReceivesRaceSends", run: func(e *env) {
		e.setup(settings.TopicNormal)
		rounds := 20
		if e.lacks(e.server.CancelledReceivesEnd, "CancelledReceivesEnd", "each of the messages may come as attempt 2 after its invisible duration") {
			rounds = 3
		}
		for range rounds {
			ctx, cancel := context.WithCancelCause(e.Context())
			var ds []*tidegate.Delivery
			wait := later(func() {
				r := e.request()
				r.Max = 32
				ds, _ = e.Transport.Receive(ctx, r)
			})
			msg := e.message("x")
			go cancel(errEnough)
			e.send(msg)
			wait()
			if len(ds) == 0 {
				r := e.request()
				r.Wait = r.InvisibleDuration + e.server.Unit
				if e.server.RetriesWakeReceives {
					ds = e.receive(r)
				} else {
					ds = []*tidegate.Delivery{e.again(r, time.Now(), 0, "the message came")}
				}
			}
			if len(ds) != 1 || ds[0].ID != msg.ID {
				e.Fatalf("received %s, want the one message", describe(ds))
			}
			// There are two valid results. A message that was released, or never delivered, is
			// available at once. A message that was sent while the cancellation was under way is
			// available after its invisible duration. Neither side of a network can distinguish the
			// two cases. The delivery may count as an attempt.
			e.mustAck(ds[0])
		}
	}},
	// The caller knows when nothing of a cancelled receive is left.
	{name: "CancelledReceiveIsRepeated", needs: needRepeat, run: func(e *env) {
		e.setup(settings.TopicNormal)
		for i := range 20 {
			ctx, cancel := context.WithCancelCause(e.Context())
			r := e.request()
			r.Push, r.Max, r.AttemptID = true, 32, fmt.Sprint(i)
			var ds []*tidegate.Delivery
			wait := later(func() { ds, _ = e.Transport.Receive(ctx, r) })
			msg := e.message("x")
			go cancel(errEnough)
			e.send(msg)
			wait()
			if len(ds) == 0 {
				r.Repeat = true
				ds = e.receive(r)
			}
			for _, d := range ds {
				if _, err := e.Transport.Settle(e.Context(), d, transport.Verdict{Kind: transport.Release}); err != nil {
					e.Fatal(err)
				}
			}
			r = e.request()
			if r.Push = true; e.fullReceives() {
				r.Wait = 0
			}
			d := e.oneOf(r)
			if d.ID != msg.ID || d.Attempt != 1 {
				e.Fatalf("received %s, want the one message as attempt 1", describe([]*tidegate.Delivery{d}))
			}
			e.mustAck(d)
		}
	}},
	{name: "DeadContext", run: func(e *env) {
		e.setup(settings.TopicNormal)
		ctx, cancel := context.WithCancelCause(e.Context())
		cancel(errEnough)
		for range 4 {
			e.send(e.message("to be settled"))
		}
		r := e.request()
		r.InvisibleDuration = 4 * e.server.Unit // longer than the case takes
		var ds []*tidegate.Delivery
		for range 4 {
			ds = append(ds, e.oneOf(r))
		}
		last := e.message("x")
		e.send(last)
		if ds, err := e.Transport.Receive(ctx, e.request()); len(ds) != 0 || !errors.Is(err, errEnough) {
			e.Errorf("Receive: %s, %v; want the cause of the context", describe(ds), err)
		}
		for _, r := range e.Transport.Send(ctx, []*tidegate.Message{e.message("y")}) {
			if !errors.Is(r.Err, errEnough) {
				e.Errorf("Send: %v; want the cause of the context", r.Err)
			}
		}
		_, retry := e.Transport.Settle(ctx, ds[1], transport.Verdict{Kind: transport.Retry})
		_, dead := e.Transport.Settle(ctx, ds[3], transport.Verdict{Kind: transport.DeadLetter, Reason: "no receive waits"})
		_, release := e.Transport.Settle(ctx, ds[0], transport.Verdict{Kind: transport.Release})
		handle, change := e.Transport.Extend(ctx, ds[2], 4*e.server.Unit, false)
		if handle != "" {
			e.Errorf("ChangeInvisibleDuration returned the handle %q with a dead context", handle)
		}
		for name, err := range map[string]error{
			"Ack":                     e.Transport.Ack(ctx, ds[:1])[0],
			"Release":                 release,
			"Retry":                   retry,
			"ChangeInvisibleDuration": change,
			"DeadLetter":              dead,
		} {
			if !errors.Is(err, errEnough) {
				e.Errorf("%s: %v; want the cause of the context", name, err)
			}
		}
		if d := e.oneOf(r); d.ID != last.ID || d.Attempt != 1 {
			e.Errorf("received %s, want the message that was sent with a live context", describe([]*tidegate.Delivery{d}))
		}
		for i, d := range ds { // nothing was done
			if err := e.ack(d); err != nil {
				e.Errorf("delivery %d, settled with a dead context only: Ack: %v", i+1, err)
			}
		}
		e.none(r)
	}},
	{name: "CloseEndsReceives", run: func(e *env) {
		e.setup(settings.TopicNormal)
		start := time.Now()
		var err error
		wait := later(func() { _, err = e.Transport.Receive(e.Context(), e.request()) })
		e.sleep(e.server.Unit / 2)
		if err := e.Transport.Close(); err != nil {
			e.Errorf("Close: %v", err)
		}
		wait()
		e.after(start, e.server.Unit/2, "the receive returned")
		if !errors.Is(err, tidegate.ErrClosed) {
			e.Errorf("Receive: %v, want ErrClosed", err)
		}
	}},
	{name: "ClosedForGood", run: func(e *env) {
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		for range 2 {
			if err := e.Transport.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
		}
		ctx := e.Context()
		_, receive := e.Transport.Receive(ctx, e.request())
		_, retry := e.Transport.Settle(ctx, d, transport.Verdict{Kind: transport.Retry})
		_, release := e.Transport.Settle(ctx, d, transport.Verdict{Kind: transport.Release})
		_, change := e.Transport.Extend(ctx, d, e.server.Unit, false)
		_, dead := e.Transport.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "closed"})
		_, producer := e.Transport.ProducerSettings(ctx, e.topic)
		_, consumer := e.Transport.ConsumerSettings(ctx, e.group, e.topic)
		_, queues := e.Transport.Queues(ctx, e.group, e.topic)
		for name, err := range map[string]error{
			"Send":                    e.Transport.Send(ctx, []*tidegate.Message{e.message("y")})[0].Err,
			"Receive":                 receive,
			"Ack":                     e.ack(d),
			"Release":                 release,
			"Retry":                   retry,
			"ChangeInvisibleDuration": change,
			"DeadLetter":              dead,
			"ProducerSettings":        producer,
			"ConsumerSettings":        consumer,
			"Queues":                  queues,
		} {
			if !errors.Is(err, tidegate.ErrClosed) {
				e.Errorf("%s after Close: %v, want ErrClosed", name, err)
			}
		}
	}},
}
