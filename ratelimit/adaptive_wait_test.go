package ratelimit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
				if err := a.WaitN(t.Context(), 1); err != nil {
					t.Error(err)
				}
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

// A throttle lowers the rate of callers that wait already: they must not continue at the old rate.
func TestAdaptiveWaitersFollowADecrease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{Ceiling: 100, Decrease: 0.5, Increase: 1e-9}) // a burst of 10
		start := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var last time.Duration
		for range 60 {
			wg.Go(func() {
				if err := a.WaitN(t.Context(), 1); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				last = max(last, time.Since(start))
			})
		}
		synctest.Wait()
		a.Observe(errThrottled) // 50 callers are left, at 50/s
		wg.Wait()
		if d := last - time.Second; d < -25*time.Millisecond || d > 25*time.Millisecond {
			t.Errorf("the last caller waited %v, want 1s", last)
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
		if err := a.WaitN(ctx, 200); err != nil {
			t.Errorf("200 events in 7.2s: %v", err)
		}
	})
}

// A caller that gives up takes no tokens, and those behind it move up.
func TestAdaptiveWaiterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{Ceiling: 10}) // a burst of 1
		if err := a.WaitN(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		large, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.WaitN(large, 1000); !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want context.Canceled", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if err := a.WaitN(t.Context(), 1); err != nil {
				t.Error(err)
			}
			if d := time.Since(start); d != 5*time.Second {
				t.Errorf("permitted after %v, want 5s, when the large one left", d)
			}
		})
		time.Sleep(5 * time.Second)
		leave()
		wg.Wait()
		// The bucket has no more than a burst from the 50 tokens of the 5 s.
		if err := a.WaitN(t.Context(), 1); err != nil || time.Since(start) != 5100*time.Millisecond {
			t.Errorf("%v after %v, want nil after 5.1s", err, time.Since(start))
		}
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
		if got := a.Limit(); got < 40 || got > 50 {
			t.Errorf("limit %v/s after a throttle, want 0.9 * 50/s", got)
		}
	})
}

// n above the burst waits for the time that n events take, and does not lend them.
func TestAdaptiveLargeN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdaptive(t, ratelimit.AdaptiveOptions{Ceiling: 100})
		start := time.Now()
		for i, want := range []time.Duration{400 * time.Millisecond, 900 * time.Millisecond} {
			if err := a.WaitN(t.Context(), 50); err != nil || time.Since(start) != want {
				t.Errorf("call %d: %v after %v, want nil after %v", i, err, time.Since(start), want)
			}
		}
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
		if got := a.Limit(); got != 450 {
			t.Errorf("limit %v/s after a throttle, want 0.9 * 1000/2", got)
		}
	})
}
