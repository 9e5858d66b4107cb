package ratelimit_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/ratelimit"
)

var errThrottled = &tidegate.Error{Code: tidegate.CodeTooManyRequests, Message: "by the test"}

func newAdaptive(t *testing.T, o ratelimit.AdaptiveOptions) *ratelimit.Adaptive {
	t.Helper()
	return assert.Value(ratelimit.NewAdaptive(o))(t)
}

// A server that admits 1 000 requests a second is offered 5 000: it must be kept
// busy, and few requests may be in vain.
func TestAdaptiveFindsTheRateOfAServer(t *testing.T) {
	for _, ceiling := range []rate.Limit{0, 5000} {
		synctest.Test(t, func(t *testing.T) {
			const capacity, callers, seconds = 1000, 50, 60
			a := newAdaptive(t, ratelimit.AdaptiveOptions{Ceiling: ceiling})
			server := rate.NewLimiter(capacity, capacity/10)
			offered := rate.NewLimiter(5*capacity, 1)
			ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
			defer cancel()
			var mu sync.Mutex
			accepted, refused := 0, 0
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for {
						if offered.Wait(ctx) != nil || a.WaitN(ctx, 1) != nil {
							return
						}
						var err error
						if !server.Allow() {
							err = errThrottled
						}
						a.Observe(err)
						mu.Lock()
						if err == nil {
							accepted++
						} else {
							refused++
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			t.Logf("ceiling %v: %d accepted, %d refused", ceiling, accepted, refused)
			want := capacity * seconds * 95 / 100
			assert.That(t, accepted >= want, "%d accepted, want at least %d, 95 %% of the capacity", accepted, want)
			most := (accepted + refused) / 10
			assert.That(t, refused <= most, "%d refused, want at most %d, a tenth of the requests", refused, most)
		})
	}
}

func TestAdaptiveRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{Floor: 10, Ceiling: 1000, Decrease: 0.5, Increase: 0.1})
		for range 20 {
			a.Observe(errThrottled)
			time.Sleep(200 * time.Millisecond)
		}
		got := a.Limit()
		assert.That(t, !(got < 10) && !(got > 11), "after 20 throttles: %v/s, want the floor of 10 and the gain of 0.2 s", got)
		last := a.Limit()
		for range 100 {
			time.Sleep(time.Second)
			if now := a.Limit(); now < last {
				t.Fatalf("the rate fell from %v to %v without a throttle", last, now)
			} else {
				last = now
			}
		}
		// 1/s is added to it in each second: a tenth of the 10/s after the last decrease.
		assert.That(t, !(math.Abs(float64(last)-110) > 1.5), "after 100 s: %v/s, want about 110", last)
		time.Sleep(time.Hour)
		assert.Equal(t, "after an hour: /s", a.Limit(), 1000)
	})
}

// A server that rejects everything for a while, at the start or later, is used fully soon after.
func TestAdaptiveReturnsSoon(t *testing.T) {
	for name, before := range map[string]time.Duration{"at the start": 0, "later": 20 * time.Second, "a little later": 20*time.Second + 20*time.Millisecond} {
		assert.Bubble(t, name, func(t *testing.T) {
			const capacity, outage = 1000, 20 * time.Second
			a := newAdaptive(t, ratelimit.AdaptiveOptions{})
			server := rate.NewLimiter(capacity, capacity/10)
			begin := time.Now()
			var mu sync.Mutex
			accepted := 0 // after the outage and a warm-up
			ctx, cancel := context.WithTimeout(t.Context(), before+outage+60*time.Second)
			defer cancel()
			offered := rate.NewLimiter(2*capacity, 1)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					for offered.Wait(ctx) == nil && a.WaitN(ctx, 1) == nil {
						now := time.Since(begin)
						if now >= before && now < before+outage || !server.Allow() {
							a.Observe(errThrottled)
							continue
						}
						a.Observe(nil)
						if now >= before+outage+15*time.Second {
							mu.Lock()
							accepted++
							mu.Unlock()
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Hour)
			got := a.Limit()
			assert.That(t, got >= capacity, "after an hour: %v/s", got)
			if want := capacity * 45 * 9 / 10; accepted < want {
				t.Errorf("%d events in the 45 s from 15 s after the end of the throttling on, want at least %d", accepted, want)
			}
		})
	}
}

func TestAdaptiveIgnoresOtherErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{Ceiling: 100})
		for _, err := range []error{nil, errors.New("connection reset"), context.DeadlineExceeded, &tidegate.Error{Code: protocol.CodeInternalError}} {
			a.Observe(err)
		}
		assert.Equal(t, "limit", a.Limit(), 100)
		for range 50 { // of requests under way together
			a.Observe(errThrottled)
		}
		assert.Equal(t, "limit after a group of refusals", a.Limit(), 90)
	})
}

func TestAdaptiveWaitN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{Ceiling: 100}) // a burst of 10
		start := time.Now()
		assert.Must(t, a.WaitN(t.Context(), 110))
		assert.Equal(t, "110 events at 100/s with a burst of 10 took", time.Since(start), time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		err := a.WaitN(ctx, 1)
		assert.That(t, errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "10ms") && ctx.Err() == nil, "%v, want an early error that names the 10ms needed", err)
		ended, end := context.WithCancelCause(t.Context())
		end(errBecause)
		assert.Is(t, "err", a.WaitN(ended, 1), errBecause)
		assert.Is(t, "err", a.WaitN(t.Context(), -1), tidegate.ErrInvalid)
		assert.NoError(t, a.WaitN(t.Context(), 0))
	})
}

var errBecause = errors.New("because")

func TestAdaptiveOptions(t *testing.T) {
	for _, c := range []struct {
		o    ratelimit.AdaptiveOptions
		want []string
	}{
		{ratelimit.AdaptiveOptions{Floor: -1}, []string{"Floor"}},
		{ratelimit.AdaptiveOptions{Floor: rate.Inf}, []string{"Floor"}},
		{ratelimit.AdaptiveOptions{Floor: 10, Ceiling: 5}, []string{"Ceiling"}},
		{ratelimit.AdaptiveOptions{Decrease: 1}, []string{"Decrease"}},
		{ratelimit.AdaptiveOptions{Increase: math.Inf(1)}, []string{"Increase"}},
		{ratelimit.AdaptiveOptions{Floor: -1, Ceiling: -2, Decrease: -3, Increase: -4}, []string{"Floor", "Ceiling", "Decrease", "Increase"}},
	} {
		_, err := ratelimit.NewAdaptive(c.o)
		if !errors.Is(err, tidegate.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", c.o, err)
			continue
		}
		for _, field := range c.want {
			assert.That(t, strings.Contains(err.Error(), field), "%+v: %v does not name %s", c.o, err, field)
		}
	}
}

// The error about a deadline considers the growth of the rate: a caller that can be permitted
// before its deadline waits, and one that cannot fails at once.
func TestAdaptiveDeadlineConsidersTheGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{})
		a.Observe(errThrottled)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		if err := a.WaitN(ctx, 200); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 0 {
			t.Errorf("200 events in 7s: %v after %v, want an error at once", err, time.Since(start))
		}
		ctx, cancel = context.WithTimeout(t.Context(), 7200*time.Millisecond)
		defer cancel()
		assert.NoError(t, a.WaitN(ctx, 200), "200 events in 7.2s")
	})
}

// A failed send is no accepted event: a server that fails 500 events a second and accepts 50 does
// not accept 550.
func TestAdaptiveCountsOnlyAcceptedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{})
		for range 50 {
			for range 10 {
				a.Observe(errors.New("connection reset"))
			}
			a.Observe(nil)
			time.Sleep(20 * time.Millisecond)
		}
		a.Observe(errThrottled)
		got := a.Limit()
		assert.That(t, !(got < 40) && !(got > 50), "limit %v/s after a throttle, want 0.9 * 50/s", got)
	})
}

// One throttle after a quiet time takes at most half of a finite rate, times Decrease: the few
// events of the quiet time do not show the rate that the server accepts.
func TestAdaptiveOneThrottleTakesHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{Ceiling: 1000})
		for range 10 {
			a.Observe(nil)
			time.Sleep(100 * time.Millisecond)
		}
		a.Observe(errThrottled)
		assert.Equal(t, "limit /s after a throttle", a.Limit(), 450)
	})
}
