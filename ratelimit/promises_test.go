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
