package producer

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A throttled lane pauses, and then sends one message until that is accepted.
func TestThrottledLaneProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, time.Millisecond)
			if time.Since(start) < 5*time.Second {
				return all(len(msgs), throttled(0))
			}
			return nil
		}}
		p := newProducer(t, f, Options{MaxThrottles: UntilContextEnds})
		for i, err := range sendAll(t.Context(), p, numbered(256)) {
			if err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		}
		refused := 0
		for _, c := range f.sent {
			if c.at.Sub(start) < 5*time.Second {
				refused++
				if c.at.Sub(start) > 10*time.Millisecond && len(c.ids) != 1 {
					t.Errorf("%v after the start a request of %d messages", c.at.Sub(start), len(c.ids))
				}
			}
		}
		if refused > 105 { // pauses of 50 ms
			t.Errorf("%d refused requests in 5s", refused)
		}
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// Pauses that other messages caused end no message without an attempt. A server that throttles
// permanently does not hold such messages permanently: after two minutes pauses count like
// attempts.
func TestThrottledLaneExhaustsAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			return all(len(msgs), throttled(0))
		}}
		var mu sync.Mutex
		ended := map[string]Attempt{}
		p := newProducer(t, f, Options{OnAttempt: func(a Attempt) {
			mu.Lock()
			defer mu.Unlock()
			if a.Stop != NotStopped {
				ended[a.MessageID] = a
			}
		}})
		start := time.Now()
		for i, err := range sendAll(t.Context(), p, numbered(256)) {
			if e := sendError(t, err); e.Reason != StopExhausted || e.Throttles != 3 || tidegate.RetryAfter(err) != 0 {
				t.Errorf("message %d: %+v", i, e)
			}
		}
		if took := time.Since(start); took > 2*time.Minute+20*time.Second { // one alone: 2.1s to 3.1s, and probes are 50 ms apart
			t.Errorf("256 messages failed after %v", took)
		}
		if n := len(f.sent); n > 256*3 || len(ended) != 256 {
			t.Errorf("%d requests, %d ends observed", n, len(ended))
		}
		for id, a := range ended {
			if after := a.Began.Add(a.Duration).Sub(start); a.Number == 0 && after < 2*time.Minute {
				t.Errorf("message %s ended after %v without an attempt", id, after)
			}
		}
	})
}

// A server whose queue is full for a moment gets the next message soon, and all messages once it
// has accepted one.
func TestThrottledLaneOpensSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, time.Millisecond)
			if time.Since(start) < 100*time.Millisecond {
				return all(len(msgs), throttled(0))
			}
			return nil
		}}
		f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
			return transport.Lane{Endpoint: "a:1", MaxMessages: 1}, nil
		}
		var mu sync.Mutex
		first := time.Duration(math.MaxInt64) // success
		p := newProducer(t, f, Options{OnAttempt: func(a Attempt) {
			mu.Lock()
			defer mu.Unlock()
			if a.Err == nil {
				first = min(first, a.Began.Sub(start))
			}
		}})
		for i, err := range sendAll(t.Context(), p, numbered(256)) {
			if err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if first > 300*time.Millisecond {
			t.Errorf("the first success after %v; the server accepted from 100 ms on", first)
		}
		if took := time.Since(start); took > 1500*time.Millisecond { // a throttled message waits 1.2 s at most
			t.Errorf("all messages after %v", took)
		}
	})
}

// Short push-backs have the lane probed often. This does not end the later messages before the end
// of their own backoff.
func TestShortPushBacksExhaustNobodyEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, time.Millisecond)
			if time.Since(start) < 1900*time.Millisecond { // a send alone has attempts at 0, 0.8 to 1.2 s, and 2.1 to 3.1 s
				return all(len(msgs), throttled(20*time.Millisecond))
			}
			return nil
		}}
		p := newProducer(t, f, Options{})
		for i, err := range sendAll(t.Context(), p, numbered(200)) {
			if err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A paused lane ends a message at once if the pause outlasts its deadline.
func TestPausedLaneFailsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 1 {
				return all(len(msgs), throttled(4*time.Second))
			}
			return nil
		}}
		p := newProducer(t, f, Options{})
		first := make(chan error, 1)
		go func() {
			_, err := p.Send(t.Context(), message())
			first <- err
		}()
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := p.Send(ctx, message())
		if e := sendError(t, err); e.Reason != StopDeadline || e.Attempts != 0 || e.Needed != 4*time.Second+attemptFloor || e.Remaining != 3*time.Second {
			t.Errorf("got %+v", e)
		}
		if tidegate.RetryAfter(err) != 4*time.Second || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// The same if the topic was sent to another server before, which is gone: no message waits for that
// one.
func TestPausedLaneFailsEarlyBesideALostOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{}
		f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
			endpoint := "a:1"
			if len(f.requests()) > 0 {
				endpoint = "b:2" // although it is busy
			}
			return transport.Lane{Endpoint: endpoint, MaxMessages: 100}, nil
		}
		f.do = func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 2 {
				return all(len(msgs), throttled(time.Minute))
			}
			return nil
		}
		p := newProducer(t, f, Options{})
		if _, err := p.Send(t.Context(), message()); err != nil {
			t.Fatal(err)
		}
		first := make(chan error, 1)
		go func() {
			_, err := p.Send(t.Context(), message())
			first <- err
		}()
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for range 2 {
			_, err := p.Send(ctx, message())
			if e := sendError(t, err); e.Reason != StopDeadline || time.Since(start) != 0 {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// The wait that a server requests may be as long as can be: every send with a deadline ends at
// once.
func TestEndlessPushBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, always(throttled(math.MaxInt64)), Options{})
		start := time.Now()
		forever, cancel := context.WithCancel(t.Context())
		if err := p.SendAsync(forever, message(), func(tidegate.Receipt, error) {}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		for range 2 {
			_, err := p.Send(ctx, message())
			if e := sendError(t, err); e.Reason != StopDeadline || e.Needed < 200*365*24*time.Hour || time.Since(start) != 0 {
				t.Errorf("%+v after %v", e, time.Since(start))
			}
		}
		cancel()
	})
}

// A server throttles all requests and announces ten minutes. Then the transport switches to
// another server. The throttled messages and those behind them follow within seconds.
func TestThrottledMessagesFollowASwitch(t *testing.T) {
	for _, group := range []string{"", "g"} {
		t.Run("group "+group, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				f := &laneFake{}
				f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
					endpoint := "a:1"
					if time.Since(start) > 30*time.Second {
						endpoint = "b:2"
					}
					return transport.Lane{Endpoint: endpoint, MaxMessages: 100}, nil
				}
				f.do = func(_ context.Context, _ int, lane transport.Lane, msgs []*tidegate.Message) []error {
					if lane.Endpoint == "a:1" {
						return all(len(msgs), throttled(10*time.Minute))
					}
					return nil
				}
				p := newProducer(t, f, Options{})
				msgs := numbered(20)
				for _, m := range msgs {
					m.MessageGroup = group
				}
				for i, r := range p.SendBatch(t.Context(), msgs) {
					if r.Err != nil || r.Receipt.Endpoint != "b:2" {
						t.Errorf("message %d: %+v", i, r)
					}
				}
				if took := time.Since(start); took > 35*time.Second {
					t.Errorf("the messages followed after %v; the switch was after 30 s", took)
				}
				if f.asked > 100 {
					t.Errorf("%d lanes were requested in 35 s", f.asked)
				}
			})
		})
	}
}

// A server that throttled a message gets it again after the requested wait, not before. Another
// server gets it after the wait of the policy.
func TestPushBackHoldsForItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &laneFake{}
		f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
			for _, ep := range []string{"a:1", "b:2"} {
				if !slices.Contains(r.Avoid, ep) {
					return transport.Lane{Endpoint: ep, MaxMessages: 100}, nil
				}
			}
			return transport.Lane{Endpoint: "a:1", MaxMessages: 100}, nil
		}
		f.do = func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n <= 2 {
				return all(len(msgs), throttled(time.Minute))
			}
			return nil
		}
		p := newProducer(t, f, Options{})
		if _, err := p.Send(t.Context(), message()); err != nil {
			t.Fatal(err)
		}
		if len(f.sent) != 3 || f.sent[0].lane.Endpoint != "a:1" || f.sent[1].lane.Endpoint != "b:2" {
			t.Fatalf("the attempts were %+v", f.sent)
		}
		if at := f.sent[1].at.Sub(start); at < 800*time.Millisecond || at > 1200*time.Millisecond {
			t.Errorf("the other server got the message after %v, want 1 s ± 20 %%", at)
		}
		third := f.sent[2]
		if at := third.at.Sub(start); third.lane.Endpoint != "a:1" || at < time.Minute || at > 62*time.Second {
			t.Errorf("the third attempt was at %s after %v, want a:1 after a minute", third.lane.Endpoint, at)
		}
	})
}
