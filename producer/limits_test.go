package producer

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// A broker that fails every request gets hardly more requests than calls.
//
// Widespread failures cause no storm of retries.
func TestBudgetBoundsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, err := ratelimit.NewBudget(ratelimit.BudgetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f := always(codeError(tidegate.CodeInternalServerError))
		p := newProducer(t, f, Options{MaxAttempts: 5, Budget: budget})
		for range 1000 { // spends the saved tokens
			p.Send(t.Context(), message())
		}
		f.calls = nil
		stopped := 0
		for range 1000 {
			_, err := p.Send(t.Context(), message())
			if sendError(t, err).Reason == StopBudget {
				stopped++
			}
		}
		if n := len(f.calls); n > 1100 || stopped < 900 {
			t.Errorf("%d requests for 1000 calls, %d stopped by the budget", n, stopped)
		}
	})
}

func TestBudgetPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, err := ratelimit.NewBudget(ratelimit.BudgetOptions{Capacity: 100})
		if err != nil {
			t.Fatal(err)
		}
		retries := map[ratelimit.Priority]int{}
		for range 120 {
			for _, priority := range []ratelimit.Priority{ratelimit.Low, ratelimit.Normal, ratelimit.High} {
				f := always(codeError(tidegate.CodeInternalServerError))
				p := newProducer(t, f, Options{MaxAttempts: 2, Budget: budget, Priority: priority})
				p.Send(t.Context(), message())
				retries[priority] += len(f.calls) - 1
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
		p := newProducer(t, script(throttled(0), codeError(protocol.CodeProxyTimeout)), Options{Limiter: l})
		if _, err := p.Send(t.Context(), message()); err != nil {
			t.Fatal(err)
		}
		if want := []tidegate.Class{tidegate.ClassThrottled, tidegate.ClassTransient, tidegate.ClassOK}; l.asked != 1 || !slices.Equal(l.seen, want) {
			t.Errorf("asked %d times, observed %v", l.asked, l.seen)
		}
	})
}

type learning struct {
	asked int
	seen  []tidegate.Class
}

func (l *learning) WaitN(_ context.Context, n int) error { l.asked += n; return nil }
func (l *learning) Observe(err error)                    { l.seen = append(l.seen, tidegate.Classify(err)) }

// A broker that is busy now and then gets every message in the end, with few requests more than
// messages.
func TestBusyBrokerGetsEveryMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := ratelimit.NewAdaptive(ratelimit.AdaptiveOptions{})
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		sent := 0
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			sent += len(msgs)
			errs := make([]error, len(msgs))
			for i := range msgs {
				if rnd.IntN(10) < 3 {
					errs[i] = throttled(0)
				}
			}
			return errs
		}}
		p := newProducer(t, f, Options{Limiter: limiter, MaxThrottles: UntilContextEnds})
		const n = 1000
		var msgs []*tidegate.Message
		for range n {
			msgs = append(msgs, message())
		}
		for i, r := range p.SendBatch(t.Context(), msgs) {
			if r.Err != nil {
				t.Errorf("message %d: %v", i, r.Err)
			}
		}
		if sent > n*3/2 {
			t.Errorf("%d messages were sent %d times, want at most 1.5 times each", n, sent)
		}
	})
}

// A broker that admits 1 000 messages a second and is offered 5 000 stores as many
// as it admits, and rejects few.
func TestAdaptiveGoodput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := ratelimit.NewAdaptive(ratelimit.AdaptiveOptions{})
		if err != nil {
			t.Fatal(err)
		}
		bucket := rate.NewLimiter(1000, 100)
		var mu sync.Mutex
		stored, refused := 0, 0
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, time.Millisecond)
			errs := make([]error, len(msgs))
			mu.Lock()
			defer mu.Unlock()
			for i := range msgs {
				if bucket.Allow() {
					stored++
				} else {
					refused++
					errs[i] = throttled(0)
				}
			}
			return errs
		}}
		p := newProducer(t, f, Options{Limiter: limiter, MaxThrottles: UntilContextEnds, WhenFull: RejectWhenFull, MaxPending: 2000})
		const warm, long = 10 * time.Second, 20 * time.Second
		start := time.Now()
		for time.Since(start) < long {
			for range 50 {
				_ = p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) {}) // most are rejected: the producer is full
			}
			time.Sleep(10 * time.Millisecond)
			if d := time.Since(start); d >= warm && d < warm+10*time.Millisecond {
				mu.Lock()
				stored, refused = 0, 0
				mu.Unlock()
			}
		}
		mu.Lock()
		goodput, share := float64(stored)/(long-warm).Seconds(), float64(refused)/float64(stored+refused)
		mu.Unlock()
		t.Logf("goodput %.0f/s, %.1f %% refused", goodput, 100*share)
		if goodput < 950 || share > 0.10 {
			t.Errorf("goodput %.0f/s of 1000/s, %.1f %% refused", goodput, 100*share)
		}
		p.Close()
	})
}

// Messages that the limiter took out of a request do not wait for its response.
func TestLimiterReturnsMessagesToOtherLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{}
		f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
			for _, ep := range []string{"a:1", "b:2"} {
				if !slices.Contains(r.Avoid, ep) {
					return transport.Lane{Endpoint: ep, MaxMessages: 100}, nil
				}
			}
			return transport.Lane{Endpoint: "a:1", MaxMessages: 100}, nil
		}
		f.do = func(ctx context.Context, _ int, lane transport.Lane, _ []*tidegate.Message) []error {
			if lane.Endpoint == "a:1" {
				sleepFor(ctx, 2*time.Second)
			}
			return nil
		}
		p := newProducer(t, f, Options{Limiter: rate.NewLimiter(100, 1)})
		start := time.Now()
		for _, r := range p.SendBatch(t.Context(), numbered(20)) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		}
		var last time.Duration
		for _, c := range f.sent {
			last = max(last, c.at.Sub(start))
		}
		if last > time.Second {
			t.Errorf("the last of 20 messages was sent after %v; the limiter permits 100/s", last)
		}
	})
}
