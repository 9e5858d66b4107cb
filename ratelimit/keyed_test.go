package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

func newKeyed[K comparable](t *testing.T, limit rate.Limit, burst int, idle time.Duration) *Keyed[K] {
	t.Helper()
	return assert.Value(NewKeyed[K](limit, burst, idle))(t)
}

func TestNewKeyedRejects(t *testing.T) {
	for _, c := range []struct {
		limit rate.Limit
		burst int
		idle  time.Duration
		want  []string // one for each line
	}{
		{0, 1, 0, []string{`"limit": 40000 BAD_REQUEST: is 0/s; it must be a number above 0`}},
		{-1, 1, 0, []string{`"limit"`}},
		{rate.Limit(math.NaN()), 1, 0, []string{`"limit"`}},
		{rate.Limit(math.Inf(1)), 1, 0, []string{`"limit"`}},
		{1, 0, 0, []string{`"burst": 40000 BAD_REQUEST: is 0; it must be 1 or more`}},
		{0, -1, -time.Second, []string{`"limit"`, `"burst"`, `"idle": 40000 BAD_REQUEST: is -1s; it must be 0s or more`}},
	} {
		_, err := NewKeyed[string](c.limit, c.burst, c.idle)
		checkError(t, err, []error{tidegate.ErrInvalid}, c.want)
		if err == nil {
			continue
		}
		lines := strings.Count(err.Error(), "\n") + 1
		assert.That(t, lines == len(c.want), "%d faults, want %d: %v", lines, len(c.want), err)
		k := newKeyed[string](t, 7, 7, time.Second)
		assert.That(t, c.idle < 0 || k.SetLimit(c.limit, c.burst) != nil, "SetLimit(%v, %d) is accepted", c.limit, c.burst)
		assert.That(t, k.limit == 7 && k.burst == 7, "a refused SetLimit changed the limit to %v, %d", k.limit, k.burst)
	}
}

// TestKeyedPace: a key has its burst at once and then its pace, to the nanosecond and without
// drift. Other keys have no influence.
func TestKeyedPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed[string](t, 3, 2, time.Minute)
		start := time.Now()
		assert.That(t, k.AllowN("other", 2) && !k.AllowN("other", 1), "other: want its burst of 2 and no more")
		for i := range 3002 {
			assert.Must(t, k.WaitN(t.Context(), "a", 1))
			want := time.Duration(math.Round(float64(max(i-1, 0)) / 3 * 1e9))
			at := time.Since(start)
			assert.MustThat(t, at >= want-1 && at <= want+1, "event %d after %v, want %v", i, at, want)
		}
	})
}

func TestKeyedWaitErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed[string](t, 2, 10, time.Minute)
		k.AllowN("a", 10)
		deadline, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		ended, stop := context.WithCancelCause(t.Context())
		stop(errStop)
		for _, c := range []struct {
			name string
			ctx  context.Context
			n    int
			is   []error
			has  []string
		}{
			{"above burst", t.Context(), 11, []error{tidegate.ErrInvalid}, []string{`"a"`, "n is 11", "burst of 10"}},
			{"negative", t.Context(), -1, []error{tidegate.ErrInvalid}, []string{`"a"`, "n is -1"}},
			{"ended", ended, 1, []error{errStop}, []string{`"a"`, "n=1"}},
			{"deadline", deadline, 6, []error{context.DeadlineExceeded},
				[]string{`"a"`, "n=6", "wait 3s", "deadline is in 2.5s", "limit 2/s", "burst 10"}},
			{"deadline at the very moment", deadline, 5, []error{context.DeadlineExceeded}, []string{"wait 2.5s"}},
			{"nothing", t.Context(), 0, nil, nil},
		} {
			t.Log(c.name)
			start := time.Now()
			checkError(t, k.WaitN(c.ctx, "a", c.n), c.is, c.has)
			waited := time.Since(start)
			assert.That(t, waited == 0, "%s: waited for %v", c.name, waited)
		}
		assert.That(t, !k.AllowN("a", -1) && k.AllowN("a", 0) && !k.AllowN("b", 11), "AllowN: want false for -1, true for 0, false above the burst")
		err := k.WaitN(deadline, "a", 4)
		assert.That(t, err == nil && !k.AllowN("a", 1), "the refused calls took tokens, or this one did not: %v", err)
	})
}

// waiter starts a WaitN. The returned function returns its duration and its error.
func waiter(ctx context.Context, k *Keyed[string], n int) (ended func() (time.Duration, error)) {
	start := time.Now()
	var after time.Duration
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = k.WaitN(ctx, "a", n)
		after = time.Since(start)
	}()
	synctest.Wait() // it has its place in the queue
	return func() (time.Duration, error) { <-done; return after, err }
}

// TestKeyedGivingUp: a caller that gives up takes no tokens, and the callers behind it move up.
// With this order of events (10, 1, the 10 cancelled, 1, the first 1 cancelled) rate.Limiter
// returns too many tokens: 6 more events at once, at 1/s.
func TestKeyedGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed[string](t, 1, 10, time.Hour)
		k.AllowN("a", 10)
		ctxA, cancelA := context.WithCancelCause(t.Context())
		ctxB, cancelB := context.WithCancelCause(t.Context())
		a, b, c := waiter(ctxA, k, 10), waiter(ctxB, k, 1), waiter(t.Context(), k, 2)
		if d, ok := k.DelayN("a", 1); d != 14*time.Second || !ok {
			t.Errorf("DelayN behind three callers = %v, %v, want 14s", d, ok)
		}
		cancelA(errStop)
		synctest.Wait()
		if d, ok := k.DelayN("a", 1); d != 4*time.Second || !ok {
			t.Errorf("DelayN after the first gave up = %v, %v, want 4s", d, ok)
		}
		d := waiter(t.Context(), k, 1)
		cancelB(errStop)
		synctest.Wait()
		assert.That(t, !k.AllowN("a", 1), "AllowN overtakes waiting callers")
		for _, w := range []struct {
			name  string
			ended func() (time.Duration, error)
			after time.Duration
			is    []error
		}{
			{"a", a, 0, []error{errStop}}, {"b", b, 0, []error{errStop}},
			{"c", c, 2 * time.Second, nil}, {"d", d, 3 * time.Second, nil},
		} {
			after, err := w.ended()
			assert.That(t, after == w.after, "%s ended after %v, want %v", w.name, after, w.after)
			checkError(t, err, w.is, nil)
		}
		assert.Equal(t, "events more are permitted at once", count(k, 10), 0)
	})
}

func count(k *Keyed[string], most int) (n int) {
	for n < most && k.AllowN("a", 1) {
		n++
	}
	return n
}

func TestKeyedSetLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit rate.Limit
		burst int
		after time.Duration // when a caller ends that waits for 4 tokens at 1/s, the limit being set after 1 s
		is    []error
		left  int // tokens then
	}{
		{"faster", 3, 10, 2 * time.Second, nil, 0},
		{"slower", 0.5, 10, 7 * time.Second, nil, 0},
		{"smaller burst", 1, 4, 4 * time.Second, nil, 0},
		{"burst too small for the caller", 1, 3, time.Second, []error{tidegate.ErrInvalid}, 1},
		{"too slow for the caller's deadline", 0.01, 10, time.Second, []error{context.DeadlineExceeded}, 1},
		{"none", rate.Inf, 0, time.Second, nil, 10},
	} {
		assert.Bubble(t, c.name, func(t *testing.T) {
			k := newKeyed[string](t, 1, 10, time.Hour)
			k.AllowN("a", 10)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			w := waiter(ctx, k, 4)
			time.Sleep(time.Second)
			assert.Must(t, k.SetLimit(c.limit, c.burst))
			after, err := w()
			assert.That(t, after == c.after, "ended after %v, want %v", after, c.after)
			checkError(t, err, c.is, nil)
			assert.Equal(t, "tokens are left", count(k, 10), c.left)
		})
	}
}

// TestKeyedSetLimitKeepsTokens: a key without callers between two changes also regains tokens by
// each of the limits, for as long as that limit is in effect.
func TestKeyedSetLimitKeepsTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed[string](t, 100, 1000, 0)
		k.AllowN("a", 1000)
		time.Sleep(time.Second) // 100
		k.SetLimit(1, 1000)
		time.Sleep(50 * time.Second) // 150
		k.SetLimit(10, 1000)
		time.Sleep(5 * time.Second) // 200
		k.SetLimit(1, 190)
		k.SetLimit(1, 1000)
		k.SetLimit(1, 1000)
		assert.Equal(t, "tokens", count(k, 1000), 190)
	})
}

func TestKeyedForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed[int](t, 1, 60, 30*time.Second)
		for i := range 100 {
			k.AllowN(i, 1)
		}
		k.AllowN(100, 60)
		assert.Equal(t, "Len =", k.Len(), 101)
		time.Sleep(30*time.Second - 1)
		assert.Equal(t, "just before the idle time Len =", k.Len(), 101)
		time.Sleep(1)
		assert.Equal(t, "after the idle time Len =", k.Len(), 1)
		assert.That(t, !k.AllowN(100, 31) && k.AllowN(100, 30), "the key that used its burst has other than 30 tokens after 30 s")
		time.Sleep(time.Hour)
		assert.Equal(t, "after an hour Len =", k.Len(), 0)
	})
}

func TestKeyedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed[int](t, 1, 10, time.Hour)
		assert.That(t, k.maxKeys == 65_536, "maxKeys = %d, want %d", k.maxKeys, 65_536)
		k.maxKeys = 3
		for i := range 3 {
			k.AllowN(i, 4)
			time.Sleep(time.Second)
		}
		// Key 0 has 9 of 10 tokens now.
		d, ok := k.DelayN(3, 1)
		assert.That(t, !k.AllowN(3, 1) && d == time.Second && ok, "a fourth key is permitted, or DelayN = %v, %v, want 1s", d, ok)
		err := k.WaitN(t.Context(), 3, 1)
		checkError(t, err, []error{tidegate.ErrThrottled}, []string{`"3"`, "3 keys", "in 1s"})
		assert.Equal(t, "RetryAfter =", err.(*tidegate.Error).RetryAfter, time.Second)
		time.Sleep(time.Second)
		assert.That(t, k.AllowN(3, 10) && !k.AllowN(3, 1) && k.Len() == 3,
			"after 1s the fourth key has not taken the place of the first; %d keys", k.Len())
	})
}

func TestKeyedNoLimit(t *testing.T) {
	k := newKeyed[string](t, rate.Inf, 0, 0)
	if d, ok := k.DelayN("a", 1<<30); !k.AllowN("a", 1<<30) || d != 0 || !ok || k.WaitN(t.Context(), "a", 1<<30) != nil {
		t.Error("rate.Inf does not permit everything")
	}
	assert.That(t, !k.AllowN("a", -1), "-1 is permitted")
}

// TestKeyedSlowest: a wait longer than any time.Duration lasts until ctx ends.
func TestKeyedSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed[string](t, math.SmallestNonzeroFloat64, 1, 0)
		k.AllowN("a", 1)
		d, ok := k.DelayN("a", 1)
		assert.That(t, d == math.MaxInt64 && ok, "DelayN = %v, %v, want the longest duration", d, ok)
		ctx, cancel := context.WithCancelCause(t.Context())
		w := waiter(ctx, k, 1)
		time.Sleep(24 * time.Hour)
		cancel(errStop)
		after, err := w()
		assert.That(t, after == 24*time.Hour, "ended after %v, want 24h", after)
		checkError(t, err, []error{errStop}, nil)
	})
}

// selfish is a key that uses its Keyed to print itself.
type selfish struct {
	k  **Keyed[selfish]
	id int
}

func (s selfish) String() string { return fmt.Sprint((*s.k).Len()) }

// TestKeyedPrintsKeysUnlocked hangs if a key is printed under the lock.
func TestKeyedPrintsKeysUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed[selfish](t, 1, 2, time.Hour)
		k.maxKeys = 1
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(500*time.Millisecond, func() { cancel(errStop) })
		key := selfish{k: &k}
		assert.Must(t, k.WaitN(ctx, key, 2))
		short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		defer stop()
		checkError(t, k.WaitN(ctx, key, -1), []error{tidegate.ErrInvalid}, []string{`"1"`})
		checkError(t, k.WaitN(ctx, key, 3), []error{tidegate.ErrInvalid}, []string{`"1"`})
		checkError(t, k.WaitN(short, key, 1), []error{context.DeadlineExceeded}, []string{`"1"`})
		checkError(t, k.WaitN(ctx, selfish{&k, 2}, 1), []error{tidegate.ErrThrottled}, []string{`"1"`})
		checkError(t, k.WaitN(ctx, key, 1), []error{errStop}, []string{`"1"`})
	})
}

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
