package ratelimit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/ratelimit"
)

// Callers that begin to wait at a low rate leave at the rate that the limiter reaches while they
// wait. From 1 event a second, which doubles in each second, 200 events take
// log2(1 + 200*ln 2) = 7.13 s.
func TestAdaptiveWaitersFollowTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{})
		a.Observe(errThrottled)
		start := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var last time.Duration
		for range 200 {
			wg.Go(func() {
				assert.NoError(t, a.WaitN(t.Context(), 1))
				mu.Lock()
				defer mu.Unlock()
				last = max(last, time.Since(start))
			})
		}
		wg.Wait()
		if least, most := 7*time.Second, 7250*time.Millisecond; last < least || last > most {
			t.Errorf("the last of 200 callers waited %v, want %v to %v", last, least, most)
		}
	})
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
