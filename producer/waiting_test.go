package producer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Messages of a request fail, and another one is throttled. The pause outlasts the deadline of all,
// so they fail early.
func TestMessageBesideAThrottledOneFailsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			errs := make([]error, len(msgs))
			for i, m := range msgs {
				if errs[i] = tidegate.ErrUnavailable; m.ID == "0001" {
					errs[i] = throttled(time.Minute)
				}
			}
			return errs
		}}
		p := newProducer(t, f, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		for i, r := range p.SendBatch(ctx, numbered(4)) {
			if e := sendError(t, r.Err); e.Reason != StopDeadline || time.Since(start) != 0 {
				t.Errorf("message %d: %v after %v", i, e, time.Since(start))
			}
		}
		if n := f.sizes(); len(n) != 1 {
			t.Errorf("requests of %v messages, want one of four", n)
		}
	})
}

// A lane pauses for the shortest wait that the server requested for a message of the request.
func TestLanePausesForTheShortestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n > 1 {
				return nil
			}
			errs := make([]error, len(msgs))
			for i := range msgs {
				errs[i] = throttled([]time.Duration{time.Minute, 2 * time.Second}[i])
			}
			return errs
		}}
		p := newProducer(t, f, Options{})
		start := time.Now()
		go p.SendBatch(t.Context(), numbered(2))
		synctest.Wait()
		if _, err := p.Send(t.Context(), message()); err != nil || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v; want a success after the shorter of 2 s and 1 min", err, time.Since(start))
		}
	})
}

// The first message of a message group leaves while it waits for its retry. The next one goes at
// once.
func TestMessageGroupContinuesWhenAMessageLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			errs := make([]error, len(msgs))
			for i, m := range msgs {
				if m.ID == "first" {
					errs[i] = throttled(time.Hour)
				}
			}
			return errs
		}}
		// Another lane is free from the start, so that only the order holds the second message.
		f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
			return transport.Lane{Endpoint: []string{"a:1", "b:2"}[min(1, len(f.requests()))], MaxMessages: 1}, nil
		}
		p := newProducer(t, f, Options{MaxThrottles: UntilContextEnds, Limiter: quiet{}})
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		first, second := named("first"), named("second")
		first.MessageGroup, second.MessageGroup = "g", "g"
		if err := p.SendAsync(ctx, first, func(tidegate.Receipt, error) {}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stored := make(chan time.Duration, 1)
		if err := p.SendAsync(t.Context(), second, func(tidegate.Receipt, error) { stored <- time.Since(start) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // before the wait of the policy is over
		cancel()
		if at := <-stored; at != 100*time.Millisecond {
			t.Errorf("the second message was stored after %v, the first one left after 100 ms", at)
		}
	})
}

// quiet is a limiter that observes and permits everything.
type quiet struct{}

func (quiet) WaitN(context.Context, int) error { return nil }
func (quiet) Observe(error)                    {}

// slowContext has the message end while its watch begins.
type slowContext struct {
	context.Context

	begin func()
	stops *int
}

func (slowContext) Value(any) any { return nil }

func (c slowContext) AfterFunc(f func()) func() bool {
	c.begin()
	stop := context.AfterFunc(c.Context, f)
	return func() bool { *c.stops++; return stop() }
}

// A message that ends before its ctx is watched leaves nothing behind at the ctx.
func TestMessageThatEndsFirstLeavesNoWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := newProducer(t, &fake{}, Options{})
		done := make(chan struct{})
		stops := 0
		c := slowContext{Context: ctx, begin: func() { <-done }, stops: &stops}
		if err := p.SendAsync(c, message(), func(tidegate.Receipt, error) { close(done) }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if stops != 1 {
			t.Errorf("the function at the ctx was removed %d times, want once", stops)
		}
	})
}

// An invalid message does not make the producer remember its topic.
func TestInvalidMessageReleasesItsTopic(t *testing.T) {
	p := newProducer(t, &fake{}, Options{})
	m := message()
	m.MessageGroup = strings.Repeat("g", 1000)
	if _, err := p.Send(t.Context(), m); !errors.Is(err, tidegate.ErrInvalid) {
		t.Fatal(err)
	}
	if n := p.topics[m.Topic].users.Load(); n != 0 {
		t.Errorf("the topic has %d users", n)
	}
}
