package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate/internal/assert"
)

// A grant is n events permitted for a key at a time.
type grant struct {
	key, n int
	at     time.Time
}

// checkWindows checks that at most burst + limit * (time between) events were permitted between any
// two grants of a key, both included. It keeps the worst window that ends at the current grant, as
// a token bucket does, and shares no code with one.
func checkWindows(t *testing.T, grants []grant, limit rate.Limit, burst int) {
	t.Helper()
	slices.SortStableFunc(grants, func(a, b grant) int { return cmp.Or(cmp.Compare(a.key, b.key), a.at.Compare(b.at)) })
	excess := 0.0 // of events over limit * time, in the worst window
	for i, g := range grants {
		if i > 0 && grants[i-1].key == g.key {
			excess = max(excess-float64(limit)*g.at.Sub(grants[i-1].at).Seconds(), 0)
		} else {
			excess = 0
		}
		excess += float64(g.n)
		if slack := float64(limit)*1e-9 + 1e-6; excess > float64(burst)+slack {
			t.Errorf("key %d has %v events more than its limit of %v/s in a window that ends at %v; its burst is %d",
				g.key, excess, limit, g.at.Sub(bubbleStart), burst)
			return
		}
	}
}

// TestKeyedProperties runs many callers that take, wait, give up and return for few keys, with a
// small burst and a short memory. It checks that
//   - no window of any key has more than burst + limit * window events;
//   - the result of DelayN is exact: without other callers, n events are permitted after it and not
//     a nanosecond before;
//   - in the end no caller is counted, and all keys are forgotten.
func TestKeyedProperties(t *testing.T) {
	seed := rand.Uint64()
	for i := range 40 {
		t.Run(fmt.Sprintf("seed %d.%d", seed, i), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			synctest.Test(t, func(t *testing.T) { runKeyedProperties(t, r) })
		})
	}
}

func runKeyedProperties(t *testing.T, r *rand.Rand) {
	limit := rate.Limit([]float64{0.7, 3, 10, 1000}[r.IntN(4)])
	burst := 1 + r.IntN(20)
	fill := time.Duration(float64(burst) / float64(limit) * 1e9)
	k := newKeyed[int](t, limit, burst, time.Duration(r.Int64N(int64(fill)))*time.Duration(r.IntN(2)))
	k.maxKeys = 2 + r.IntN(5)

	var mu sync.Mutex
	var grants []grant
	var wg sync.WaitGroup
	for range 30 {
		seed := r.Uint64()
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range 40 {
				key, n, ok := r.IntN(6), r.IntN(burst+1), false
				switch r.IntN(4) {
				case 0:
					ok = k.AllowN(key, n)
				case 1:
					ok = k.WaitN(t.Context(), key, n) == nil
				case 2: // with a deadline
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(8*fill))))
					ok = k.WaitN(ctx, key, n) == nil
					cancel()
				case 3: // is cancelled at a random time
					ctx, cancel := context.WithCancel(t.Context())
					stop := time.AfterFunc(time.Duration(r.Int64N(int64(2*fill))), cancel)
					ok = k.WaitN(ctx, key, n) == nil
					stop.Stop()
					cancel()
				}
				if ok {
					mu.Lock()
					grants = append(grants, grant{key, n, time.Now()})
					mu.Unlock()
				}
				if r.IntN(3) == 0 {
					time.Sleep(time.Duration(r.Int64N(int64(2 * fill))))
				}
			}
		})
	}
	wg.Wait()
	checkWindows(t, grants, limit, burst)

	for range 50 {
		key, n := r.IntN(6), 1+r.IntN(burst)
		d, ok := k.DelayN(key, n)
		assert.MustThat(t, ok, "DelayN(%d) with a burst of %d is false", n, burst)
		// Until there is room for a new key is rounded up, the rest to the nearest.
		early := d - 1
		if k.keys[key] == nil {
			early--
		}
		if early > 0 {
			time.Sleep(early)
			assert.MustThat(t, !k.AllowN(key, n), "DelayN(%d) = %v, but it is permitted %v before", n, d, d-early)
			d -= early
		}
		time.Sleep(d)
		again, _ := k.DelayN(key, n)
		assert.MustThat(t, again <= 1 && (again != 0 || k.AllowN(key, n)), "DelayN(%d) = %v, and after that it is %v", n, d, again)
		time.Sleep(time.Duration(r.Int64N(int64(fill))))
	}

	for _, b := range k.keys {
		assert.That(t, b.callers == 0 && b.waiting == 0 && b.elem != nil, "key %d is left with %d callers that wait for %v", b.key, b.callers, b.waiting)
	}
	time.Sleep(fill + k.idle + 1)
	n := k.Len()
	assert.That(t, n == 0 && k.unused.Len() == 0, "%d keys are never forgotten", n)
}
