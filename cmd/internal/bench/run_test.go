package bench

import (
	"cmp"
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

func near(t *testing.T, name string, gotMicros float64, want, tolerance time.Duration) {
	t.Helper()
	got := time.Duration(gotMicros * 1e3)
	assert.That(t, (got-want).Abs() <= tolerance, "%s is %v, want %v ± %v", name, got, want, tolerance)
}

// single is an operation of one message that ends before it returns.
func single(op func(context.Context) (failure string)) Operation {
	return func(ctx context.Context, done func(Outcome)) {
		if failure := op(ctx); failure != "" {
			done(Outcome{Failures: []string{failure}})
			return
		}
		done(Outcome{Messages: 1})
	}
}

// A server hangs for one second in ten, at 1 000 operations a second. A tenth of the operations is
// due in the stall. An operation that is due x before the end of the stall waits for x. So the p90
// is 0, the p95 is half a second and the p99 is 900 ms. A generator that waits for its responses
// would have measured one slow operation for each caller.
func TestStallIsMeasuredFromTheDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		op := func(context.Context) string {
			if now := time.Since(start); now%(10*time.Second) >= 9*time.Second {
				time.Sleep(10*time.Second - now%(10*time.Second))
			}
			return ""
		}
		r, err := Run(t.Context(), Options{Callers: 2000, Rate: 1000, Arrivals: Even, Duration: 60 * time.Second, Outstanding: 1000}, single(op))
		assert.MustThat(t, err == nil && r.Invalid == "" && r.Done == 60000, "%v, invalid %q, %d done", err, r.Invalid, r.Done)
		near(t, "p50", r.Response.P50, 0, time.Millisecond)
		near(t, "p90", r.Response.P90, 0, 5*time.Millisecond)
		near(t, "p99", r.Response.P99, 900*time.Millisecond, 10*time.Millisecond)
		near(t, "max", r.Response.Max, time.Second, 5*time.Millisecond)
		near(t, "the worst second's p99", r.WorstP99, 990*time.Millisecond, 15*time.Millisecond)
	})
}

// With one caller the operations that become due in the stall wait in turn. The response time
// includes this wait, the service time does not.
func TestWaitsForACallerCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := true
		op := func(context.Context) string {
			if first {
				first = false
				time.Sleep(time.Second)
			}
			return ""
		}
		r := assert.Value(Run(t.Context(), Options{Callers: 1, Rate: 100, Arrivals: Even, Duration: 10 * time.Second, Outstanding: 1000}, single(op)))(t)
		near(t, "the response's p99", r.Response.P99, 900*time.Millisecond, 20*time.Millisecond)
		near(t, "the service's p99", r.Service.P99, 0, time.Millisecond)
		assert.Equal(t, "the run is; its figures are those of one caller", r.Invalid, "")
	})
}

// Five milliseconds for one caller are 200 operations a second, and not 250.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := func(context.Context) string { time.Sleep(5 * time.Millisecond); return "" }
		r, err := Run(t.Context(), Options{Callers: 1, Rate: 250, Arrivals: Even, Duration: 10 * time.Second, Outstanding: 100}, single(op))
		assert.That(t, err == nil && strings.HasPrefix(r.Invalid, "OVERLOADED"), "%v, invalid %q, want overloaded", err, r.Invalid)
		r, err = Run(t.Context(), Options{Callers: 1, Rate: 0, Arrivals: Even, Duration: 10 * time.Second, Outstanding: 1}, single(op))
		if err != nil || math.Abs(r.Achieved-200) > 1 || r.Response != nil {
			t.Errorf("a closed loop: %v, %v a second, response %v; want 200 and no response", err, r.Achieved, r.Response)
		}
	})
}

// A generator that is late measures itself: the run has no figures.
func TestLateGenerator(t *testing.T) {
	o := Options{Rate: 100, Outstanding: 10}
	for _, c := range []struct {
		name         string
		late, median time.Duration
		valid        bool
	}{
		{"in time", 100 * time.Microsecond, 300 * time.Microsecond, true},
		{"late", 2 * time.Millisecond, 10 * time.Millisecond, false},
		{"late, and the response is long", 2 * time.Millisecond, 100 * time.Millisecond, true},
	} {
		if got := invalid(o, Round{Achieved: 100}, c.late, c.median, false); (got == "") != c.valid {
			t.Errorf("%s: %q, want valid %v", c.name, got, c.valid)
		}
	}
}

// Failures are counted by cause and are no latency.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n := 0
		op := func(context.Context) string {
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if n++; n%10 == 0 {
				return "throttled"
			}
			return ""
		}
		r, err := Run(t.Context(), Options{Callers: 10, Rate: 100, Arrivals: Poisson, Duration: 10 * time.Second, Outstanding: 10, Seed: 1}, single(op))
		if total := r.Done + r.Failed["throttled"]; err != nil || r.Failed["throttled"] != total/10 || total < 900 || total > 1100 {
			t.Errorf("%v, %d done, failed %v", err, r.Done, r.Failed)
		}
	})
}

// The end of ctx ends a round, and the error is its cause.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rate := range []float64{0, 1000} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			op := func(ctx context.Context) string { time.Sleep(time.Millisecond); return "" }
			start := time.Now()
			r, err := Run(ctx, Options{Callers: 2, Rate: rate, Arrivals: Even, Duration: time.Hour, Outstanding: 10}, single(op))
			if err == nil || time.Since(start) > 1100*time.Millisecond || r.Done == 0 {
				t.Errorf("rate %v: %v after %v, %d done", rate, err, time.Since(start), r.Done)
			}
			cancel()
		}
	})
}

// The intervals of Poisson arrivals have the mean of the rate and, as exponential times have, a
// standard deviation equal to the mean.
func TestPoisson(t *testing.T) {
	s := newSchedule(1000, Poisson, 7)
	var sum, squares float64
	last := time.Duration(0)
	const n = 200_000
	for range n {
		at := s.next()
		gap := (at - last).Seconds()
		sum, squares, last = sum+gap, squares+gap*gap, at
	}
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	if math.Abs(mean-0.001) > 0.00001 || math.Abs(deviation-0.001) > 0.00002 {
		t.Errorf("mean %v, standard deviation %v, want 1 ms each", mean, deviation)
	}
}

// A delivery before the acceptance of its send is not a loss. A delivery whose acceptance was never
// reported does not hide a loss.
func TestVerifier(t *testing.T) {
	v := NewVerifier()
	for n := range int64(5) {
		v.Accept(n)
	}
	for _, d := range []struct {
		number int64
		group  string
	}{{1, "a"}, {3, "a"}, {2, "a"}, {1, "a"}, {0, ""}, {700, ""}} {
		v.Deliver(d.number, d.group)
	}
	if got, want := v.Truth(), (Truth{Accepted: 5, Delivered: 5, Lost: 1, Twice: 1, OutOfOrder: 1}); got != want || v.Complete() {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// An asynchronous generator has one goroutine and at most as many operations under way as callers.
func TestAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rate := range []float64{0, 150} {
			begins, under, most := 0, atomic.Int64{}, atomic.Int64{}
			op := func(_ context.Context, done func(Outcome)) {
				begins++ // no other goroutine begins one
				most.Store(max(most.Load(), under.Add(1)))
				time.AfterFunc(100*time.Millisecond, func() {
					under.Add(-1)
					done(Outcome{Messages: 1})
				})
			}
			r, err := Run(t.Context(), Options{Callers: 20, Rate: rate, Arrivals: Even, Duration: 10 * time.Second, Outstanding: 10, Async: true}, op)
			want := cmp.Or(rate, 200) // 20 callers with 100 ms each
			if err != nil || math.Abs(r.Achieved-want) > 2.5 || most.Load() > 20 || r.Done != int64(begins) || r.Invalid != "" {
				t.Errorf("rate %v: %v, %v a second, %d begun, %d done, %d at once, %q", rate, err, r.Achieved, begins, r.Done, most.Load(), r.Invalid)
			}
		}
	})
}

// An operation of several messages counts each, with its failures, and the last one ends the round.
func TestManyMessagesAndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		op := func(_ context.Context, done func(Outcome)) {
			time.Sleep(time.Millisecond)
			done(Outcome{Messages: 9, Failures: []string{"throttled"}, Last: n.Add(1) >= 50})
		}
		r, err := Run(t.Context(), Options{Callers: 1, Duration: time.Hour, Outstanding: 1, Arrivals: Even}, op)
		if err != nil || r.Done != 450 || r.Failed["throttled"] != 50 || math.Abs(r.Achieved-9000) > 1 {
			t.Errorf("%v, %d done, %v failed, %v a second", err, r.Done, r.Failed, r.Achieved)
		}
	})
}

// A body has its number for its own run alone, and a changed byte is seen.
func TestNumberOfABody(t *testing.T) {
	b := assert.Value(ParseBodies("uniform:16-200"))(t)
	b.Run = 7
	for n := range int64(300) {
		body := b.Body(n)
		if got, ok := b.Number(body); !ok || got != n {
			t.Fatalf("the body of %d has %d, %v", n, got, ok)
		}
		other := b
		other.Run = 8
		if _, ok := other.Number(body); ok {
			t.Fatalf("a body of another run is accepted")
		}
		body[n%int64(len(body))] ^= 1
		if _, ok := b.Number(body); ok {
			t.Fatalf("byte %d of body %d changed, and it is accepted", n%int64(len(body)), n)
		}
	}
	if _, ok := b.Number([]byte("short")); ok {
		t.Error("a short body is accepted")
	}
}
