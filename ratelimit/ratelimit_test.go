package ratelimit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// limiterFunc is a Limiter with only the method WaitN.
type limiterFunc func(ctx context.Context, n int) error

func (f limiterFunc) WaitN(ctx context.Context, n int) error { return f(ctx, n) }

var errStop = errors.New("stopped by the user")

func TestWait(t *testing.T) {
	opaque := errors.New("no more today")
	for _, c := range []struct {
		name    string
		limiter Limiter
		n       int
		timeout time.Duration // of ctx; 0 for none
		cancel  time.Duration // when ctx is cancelled; 0 for never, negative for before
		waited  time.Duration
		is      []error  // that the error matches; none for success
		has     []string // that its text contains
	}{
		{name: "at once", limiter: rate.NewLimiter(2, 10), n: 10},
		{name: "after a wait", limiter: drained(2, 10), n: 5, waited: 2500 * time.Millisecond},
		{name: "after a wait, before the deadline", limiter: drained(2, 10), n: 5, timeout: 3 * time.Second, waited: 2500 * time.Millisecond},
		{name: "nothing", limiter: drained(0, 10), n: 0},
		{name: "no limit", limiter: rate.NewLimiter(rate.Inf, 0), n: 1000},
		{name: "deadline cannot be met", limiter: drained(2, 10), n: 5, timeout: 2 * time.Second,
			is:  []error{context.DeadlineExceeded},
			has: []string{"n=5", "wait 2.5s", "deadline is in 2s", "limit 2/s", "burst 10"}},
		{name: "never refilled", limiter: drained(0, 10), n: 1, timeout: time.Second,
			is: []error{context.DeadlineExceeded}, has: []string{"without end"}},
		{name: "above burst", limiter: rate.NewLimiter(2, 10), n: 11, timeout: time.Hour,
			is: []error{tidegate.ErrInvalid}, has: []string{"n is 11", "burst of 10"}},
		{name: "negative", limiter: rate.NewLimiter(2, 10), n: -1, is: []error{tidegate.ErrInvalid}, has: []string{"n is -1"}},
		{name: "cancelled", limiter: drained(2, 10), n: 5, cancel: time.Second, waited: time.Second,
			is: []error{errStop, context.Canceled}, has: []string{"n=5"}},
		{name: "cancelled before", limiter: rate.NewLimiter(2, 10), n: 1, cancel: -1, is: []error{errStop}},
		{name: "nothing, cancelled before", limiter: rate.NewLimiter(2, 10), n: 0, cancel: -1, is: []error{errStop}},
		{name: "deadline passes in a limiter that ignores it", n: 1, timeout: time.Second, waited: time.Second,
			limiter: limiterFunc(func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }),
			is:      []error{context.DeadlineExceeded}},
		{name: "an error of the limiter's own", n: 3, timeout: time.Second,
			limiter: limiterFunc(func(context.Context, int) error { return opaque }),
			is:      []error{opaque}, has: []string{"n=3"}},
	} {
		assert.Bubble(t, c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.cancel < 0 {
				cancel(errStop)
			} else if c.cancel > 0 {
				defer time.AfterFunc(c.cancel, func() { cancel(errStop) }).Stop()
			}
			if c.timeout > 0 {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, c.timeout)
				defer stop()
			}
			start := time.Now()
			err := Wait(ctx, c.limiter, c.n)
			assert.Equal(t, "waited for", time.Since(start), c.waited)
			checkError(t, err, c.is, c.has)
		})
	}
}

// TestWaitKeepsCodes: a caller that asks for the code finds the limiter's, not
// the 0 of another Error around it.
func TestWaitKeepsCodes(t *testing.T) {
	refused := &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: time.Second}
	err := Wait(t.Context(), limiterFunc(func(context.Context, int) error { return refused }), 1)
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.Code == refused.Code && e.RetryAfter == time.Second, "error %v, want the limiter's %v", err, refused)
}

// drained returns a limiter without tokens.
func drained(limit rate.Limit, burst int) *rate.Limiter {
	l := rate.NewLimiter(limit, burst)
	l.AllowN(bubbleStart, burst)
	return l
}

// bubbleStart is when time begins in every bubble.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func checkError(t *testing.T, err error, is []error, has []string) {
	t.Helper()
	assert.That(t, len(is) != 0 || err == nil, "error %v, want none", err)
	for _, target := range is {
		assert.That(t, errors.Is(err, target), "error %v, want one that matches %v", err, target)
	}
	_, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok || err == nil, "error %v is no *tidegate.Error", err)
	for _, s := range has {
		assert.That(t, err != nil && strings.Contains(err.Error(), s), "error %v, want %q in it", err, s)
	}
}

// Wait never blocks if n is 0, even if the limiter would.
func TestWaitForNothingAsksNoLimiter(t *testing.T) {
	called := false
	err := Wait(t.Context(), limiterFunc(func(context.Context, int) error { called = true; return errStop }), 0)
	assert.That(t, err == nil && !called, "error %v, and the limiter was called: %t; want neither", err, called)
}

// The estimate of a *rate.Limiter's wait counts the tokens that the limiter has.
func TestWaitEstimatesFromTheTokensLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := rate.NewLimiter(1, 5)
		l.AllowN(time.Now(), 3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		// Five events need three more tokens, at one a second.
		if err := Wait(ctx, l, 5); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "wait 3s") {
			t.Errorf("error %v, want the deadline and a wait of 3s", err)
		}
	})
}

var errThrottle = &tidegate.Error{Code: tidegate.CodeTooManyRequests}

func adaptive(t *testing.T, o AdaptiveOptions) *Adaptive {
	t.Helper()
	return assert.Value(NewAdaptive(o))(t)
}

// Throttles within 100 ms lower the rate once.
func TestThrottlesOfOneGroupCountOnce(t *testing.T) {
	for _, tt := range []struct {
		name   string
		gap    time.Duration
		lowers bool // the second throttle lowers the rate
	}{
		{"at the same time", 0, false},
		{"99 ms later", 99 * time.Millisecond, false},
		{"100 ms later", 100 * time.Millisecond, true},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			a := adaptive(t, AdaptiveOptions{Ceiling: 1000, Increase: 1e-9})
			a.Observe(errThrottle)
			time.Sleep(tt.gap)
			before := a.Limit()
			a.Observe(errThrottle)
			after := a.Limit()
			assert.That(t, (after < before) == tt.lowers, "the rate went from %v to %v with the second throttle", before, after)
		})
	}
}

// Below the rate at which the server accepted events, the limit doubles in each second. A lower
// rate at the next throttle, which can be that of a window with few events, does not lower the
// known rate below its half, and at most once in a second.
func TestKnownRateFallsByHalves(t *testing.T) {
	o := AdaptiveOptions{Floor: 1, Ceiling: rate.Inf, Decrease: 0.5, Increase: 0.05}
	begin := time.Unix(0, 0)
	for _, tt := range []struct {
		name        string
		after       time.Duration
		seen, known rate.Limit
	}{
		{"a higher rate", 0, 400, 200},
		{"a lower rate in the same second", 900 * time.Millisecond, 10, 100},
		{"a little lower a second later", time.Second, 160, 80},
		{"much lower a second later", time.Second, 10, 50},
		{"nothing seen", time.Second, 0, 100},
	} {
		p := pace{limit: 1000, known: 100, learned: begin}
		got := p.learnt(tt.seen, begin.Add(tt.after), o).known
		assert.That(t, got == tt.known, "%s: %v/s is known after a throttle at %v/s, want %v/s", tt.name, got, tt.seen, tt.known)
	}
}
