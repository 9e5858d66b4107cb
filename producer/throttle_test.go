package producer_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A throttled lane pauses, and then sends one message until that is accepted.
func TestThrottledLaneProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, time.Millisecond)
			if time.Since(start) < 5*time.Second {
				return all(len(msgs), throttled(0))
			}
			return nil
		}}
		p := newProducer(t, f, producer.Options{MaxThrottles: producer.UntilContextEnds})
		noErrors(t, sendAll(t.Context(), p, numbered(256)))
		refused := 0
		for _, c := range f.Calls("Send") {
			if c.At.Sub(start) < 5*time.Second {
				refused++
				assert.That(t, c.At.Sub(start) <= 10*time.Millisecond || len(c.Messages) == 1,
					"%v after the start a request of %d messages", c.At.Sub(start), len(c.Messages))
			}
		}
		if refused > 105 { // pauses of 50 ms
			t.Errorf("%d refused requests in 5s", refused)
		}
		took := time.Since(start)
		assert.That(t, took <= 15*time.Second, "took %v", took)
	})
}

// Pauses that other messages caused end no message without an attempt. A server that throttles
// permanently does not hold such messages permanently: after two minutes pauses count like
// attempts.
//
// Each message of a request has an event with the number of messages in the request. A message that
// reaches a limit while it waits in the queue has an event without an attempt: its Duration and
// Messages are 0, and nothing can have been stored.
func TestThrottledLaneExhaustsAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := together(func(context.Context) error { return throttled(0) })
		var mu sync.Mutex
		attempted, waited, ended := 0, 0, map[string]producer.Attempt{}
		p := newProducer(t, f, producer.Options{OnAttempt: func(a producer.Attempt) {
			mu.Lock()
			defer mu.Unlock()
			if a.Stop != producer.NotStopped {
				ended[a.MessageID] = a
			}
			if attempted++; a.Messages == 0 {
				attempted, waited = attempted-1, waited+1
				assert.That(t, a.Duration == 0 && !a.MaybeStored && a.Stop != producer.NotStopped && a.Class == tidegate.ClassThrottled,
					"event %+v of a message that waited", a)
			}
		}})
		start := time.Now()
		for i, err := range sendAll(t.Context(), p, numbered(256)) {
			if e := sendError(t, err); e.Reason != producer.StopExhausted || e.Throttles != 3 || tidegate.RetryAfter(err) != 0 || e.MaybeStored {
				t.Errorf("message %d: %+v", i, e)
			}
		}
		if took := time.Since(start); took > 2*time.Minute+20*time.Second { // one alone: 2.1s to 3.1s, and probes are 50 ms apart
			t.Errorf("256 messages failed after %v", took)
		}
		n, sent := len(f.Calls("Send")), 0
		for _, size := range sizes(f) {
			sent += size
		}
		assert.That(t, n <= 256*3 && len(ended) == 256, "%d requests, %d ends observed", n, len(ended))
		assert.That(t, attempted == sent && waited > 0 && waited <= 256, "%d events of attempts and %d of messages that waited, want %d and some", attempted, waited, sent)
		for id, a := range ended {
			after := a.Began.Add(a.Duration).Sub(start)
			assert.That(t, a.Number != 0 || after >= 2*time.Minute, "message %s ended after %v without an attempt", id, after)
		}
	})
}

// A server whose queue is full for a moment gets the next message soon, and all messages once it
// has accepted one.
func TestThrottledLaneOpensSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, time.Millisecond)
			if time.Since(start) < 100*time.Millisecond {
				return all(len(msgs), throttled(0))
			}
			return nil
		}}
		f.OnLane = one
		var mu sync.Mutex
		first := time.Duration(math.MaxInt64) // success
		p := newProducer(t, f, producer.Options{OnAttempt: func(a producer.Attempt) {
			mu.Lock()
			defer mu.Unlock()
			if a.Err == nil {
				first = min(first, a.Began.Sub(start))
			}
		}})
		noErrors(t, sendAll(t.Context(), p, numbered(256)))
		assert.That(t, first <= 300*time.Millisecond, "the first success after %v; the server accepted from 100 ms on", first)
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
		f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, time.Millisecond)
			if time.Since(start) < 1900*time.Millisecond { // a send alone has attempts at 0, 0.8 to 1.2 s, and 2.1 to 3.1 s
				return all(len(msgs), throttled(20*time.Millisecond))
			}
			return nil
		}}
		p := newProducer(t, f, producer.Options{})
		noErrors(t, sendAll(t.Context(), p, numbered(200)))
		took := time.Since(start)
		assert.That(t, took <= 4*time.Second, "took %v", took)
	})
}

// A paused lane ends a message at once if the pause outlasts its deadline.
func TestPausedLaneFailsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 1 {
				return all(len(msgs), throttled(4*time.Second))
			}
			return nil
		}}
		p := newProducer(t, f, producer.Options{})
		first := make(chan error, 1)
		go func() {
			_, err := p.Send(t.Context(), message())
			first <- err
		}()
		synctest.Wait()
		start := time.Now()
		ctx := within(t, 3*time.Second)
		_, err := p.Send(ctx, message())
		if e := sendError(t, err); e.Reason != producer.StopDeadline || e.Attempts != 0 || e.Needed != 4100*time.Millisecond || e.Remaining != 3*time.Second {
			t.Errorf("got %+v", e)
		}
		assert.That(t, tidegate.RetryAfter(err) == 4*time.Second && time.Since(start) == 0, "%v after %v", err, time.Since(start))
		assert.NoError(t, <-first)
	})
}

// The same if the topic was sent to another server before, which is gone: no message waits for that
// one.
func TestPausedLaneFailsEarlyBesideALostOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{}
		f.OnLane = func(_ context.Context, _ int, r transport.LaneRequest) (transport.Lane, error) {
			endpoint := "a:1"
			if len(f.Calls("Send")) > 0 {
				endpoint = "b:2" // although it is busy
			}
			return transport.Lane{Endpoint: endpoint, MaxMessages: 100}, nil
		}
		f.OnSend = func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 2 {
				return all(len(msgs), throttled(time.Minute))
			}
			return nil
		}
		p := newProducer(t, f, producer.Options{})
		assert.Must(t, assert.Err(p.Send(t.Context(), message())))
		first := make(chan error, 1)
		go func() {
			_, err := p.Send(t.Context(), message())
			first <- err
		}()
		synctest.Wait()
		start := time.Now()
		ctx := within(t, 10*time.Second)
		for range 2 {
			_, err := p.Send(ctx, message())
			e := sendError(t, err)
			assert.That(t, e.Reason == producer.StopDeadline && time.Since(start) == 0, "%v after %v", err, time.Since(start))
		}
		assert.NoError(t, <-first)
	})
}

// The wait that a server requests may be as long as can be: every send with a deadline ends at
// once.
func TestEndlessPushBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, always(throttled(math.MaxInt64)), producer.Options{})
		start := time.Now()
		forever, cancel := context.WithCancel(t.Context())
		assert.Must(t, p.SendAsync(forever, message(), func(tidegate.Receipt, error) {}))
		synctest.Wait()
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		for range 2 {
			_, err := p.Send(ctx, message())
			if e := sendError(t, err); e.Reason != producer.StopDeadline || e.Needed < 200*365*24*time.Hour || time.Since(start) != 0 {
				t.Errorf("%+v after %v", e, time.Since(start))
			}
		}
		cancel()
	})
}

// A server that throttled a message gets it again after the requested wait, not before. Another
// server gets it after the wait of the policy.
func TestPushBackHoldsForItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &transporttest.Fake{OnLane: other}
		f.OnSend = func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n <= 2 {
				return all(len(msgs), throttled(time.Minute))
			}
			return nil
		}
		p := newProducer(t, f, producer.Options{})
		assert.Must(t, assert.Err(p.Send(t.Context(), message())))
		if len(f.Calls("Send")) != 3 || f.Calls("Send")[0].Lane.Endpoint != "a:1" || f.Calls("Send")[1].Lane.Endpoint != "b:2" {
			t.Fatalf("the attempts were %+v", f.Calls("Send"))
		}
		if at := f.Calls("Send")[1].At.Sub(start); at < 800*time.Millisecond || at > 1200*time.Millisecond {
			t.Errorf("the other server got the message after %v, want 1 s ± 20 %%", at)
		}
		third := f.Calls("Send")[2]
		if at := third.At.Sub(start); third.Lane.Endpoint != "a:1" || at < time.Minute || at > 62*time.Second {
			t.Errorf("the third attempt was at %s after %v, want a:1 after a minute", third.Lane.Endpoint, at)
		}
	})
}

// A server that throttles 200 topics for half a second, and then has no limit, does not fail their
// sends half a minute later: the messages that wait at the limiter follow its rate.
func TestTopicsShareALimiterAfterAShortThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := assert.Value(ratelimit.NewAdaptive(ratelimit.AdaptiveOptions{}))(t)
		start := time.Now()
		f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			busy := time.Since(start) < 500*time.Millisecond
			sleepFor(ctx, time.Millisecond)
			errs := make([]error, len(msgs))
			for i := range msgs {
				if busy {
					errs[i] = throttled(0)
				}
			}
			return errs
		}}
		p := newProducer(t, f, producer.Options{Limiter: limiter})
		var wg sync.WaitGroup
		for range 2 {
			for i := range 200 {
				wg.Go(func() {
					ctx := within(t, 30*time.Second)
					msg := message()
					msg.Topic = fmt.Sprintf("topic-%d", i)
					assert.NoError(t, assert.Err(p.Send(ctx, msg)))
				})
			}
			time.Sleep(500 * time.Millisecond)
		}
		wg.Wait()
		d := time.Since(start)
		assert.That(t, d <= 15*time.Second, "the last of 400 sends took %v, want at most 15s", d)
	})
}

// A broker that fails every request gets hardly more requests than calls.
//
// Widespread failures cause no storm of retries.
func TestBudgetBoundsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := assert.Value(ratelimit.NewBudget(ratelimit.BudgetOptions{}))(t)
		f := always(codeError(tidegate.CodeInternalServerError))
		p := newProducer(t, f, producer.Options{MaxAttempts: 5, Budget: budget})
		for range 1000 { // spends the saved tokens
			p.Send(t.Context(), message())
		}
		before := len(f.Calls("Send"))
		stopped := 0
		for range 1000 {
			_, err := p.Send(t.Context(), message())
			if sendError(t, err).Reason == producer.StopBudget {
				stopped++
			}
		}
		n := len(f.Calls("Send")) - before
		assert.That(t, n <= 1100 && stopped >= 900, "%d requests for 1000 calls, %d stopped by the budget", n, stopped)
	})
}

func TestBudgetPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := assert.Value(ratelimit.NewBudget(ratelimit.BudgetOptions{Capacity: 100}))(t)
		retries := map[ratelimit.Priority]int{}
		for range 120 {
			for _, priority := range []ratelimit.Priority{ratelimit.Low, ratelimit.Normal, ratelimit.High} {
				f := always(codeError(tidegate.CodeInternalServerError))
				p := newProducer(t, f, producer.Options{MaxAttempts: 2, Budget: budget, Priority: priority})
				p.Send(t.Context(), message())
				retries[priority] += len(f.Calls("Send")) - 1
			}
		}
		// Each round of three calls earns 0.3 and spends up to 3 of 100. Low stops at 50 and Normal
		// at 10; High spends the rest and all that is earned.
		total := retries[ratelimit.Low] + retries[ratelimit.Normal] + retries[ratelimit.High]
		if low, normal := retries[ratelimit.Low], retries[ratelimit.Normal]; low < 17 || low > 20 || normal < low+15 || normal > low+30 ||
			retries[ratelimit.High] < normal+30 || total > 100+120*3/10 {
			t.Errorf("retries by priority: %v", retries)
		}
	})
}

// A limiter that learns is charged for first attempts, and gets every result.
func TestAdaptiveLimiterObserves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &learning{}
		p := newProducer(t, script(throttled(0), codeError(protocol.CodeProxyTimeout)), producer.Options{Limiter: l})
		assert.Must(t, assert.Err(p.Send(t.Context(), message())))
		want := []tidegate.Class{tidegate.ClassThrottled, tidegate.ClassTransient, tidegate.ClassOK}
		assert.That(t, l.asked == 1 && slices.Equal(l.seen, want), "asked %d times, observed %v", l.asked, l.seen)
	})
}

type learning struct {
	asked int
	seen  []tidegate.Class
}

func (l *learning) WaitN(_ context.Context, n int) error { l.asked += n; return nil }
func (l *learning) Observe(err error)                    { l.seen = append(l.seen, tidegate.Classify(err)) }

// Messages that the limiter took out of a request do not wait for its response.
func TestLimiterReturnsMessagesToOtherLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnLane: other}
		f.OnSend = func(ctx context.Context, _ int, lane transport.Lane, _ []*tidegate.Message) []error {
			if lane.Endpoint == "a:1" {
				sleepFor(ctx, 2*time.Second)
			}
			return nil
		}
		p := newProducer(t, f, producer.Options{Limiter: rate.NewLimiter(100, 1)})
		start := time.Now()
		for _, r := range p.SendBatch(t.Context(), numbered(20)) {
			assert.NoError(t, r.Err)
		}
		var last time.Duration
		for _, c := range f.Calls("Send") {
			last = max(last, c.At.Sub(start))
		}
		assert.That(t, last <= time.Second, "the last of 20 messages was sent after %v; the limiter permits 100/s", last)
	})
}
