package ratelimit

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
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

// sequences runs a model in a bubble for each sequence.
func sequences(t *testing.T, f func(t *testing.T, r *rand.Rand)) {
	model.Run(t, 1000, func(t *testing.T, r *rand.Rand) { synctest.Test(t, func(t *testing.T) { f(t, r) }) })
}

// A line models the goroutines of the callers that wait at one bucket: the first one sleeps until
// its timer, or until the limiter wakes it.
type line struct {
	waiting []caller
	changed <-chan struct{} // of the first caller's sleep; nil if it does not sleep
	timer   time.Time
	entered bool // proceed was called for the first caller
	calls   int  // of proceed
	due     int  // upper bound for calls
	served  []grant
}

type caller struct {
	n        int
	deadline time.Time // zero for none
	gone     time.Time // when it gives up; zero for never
}

// run lets the callers act until now. proceed and leave are those of the limiter.
func (l *line) run(
	t *testing.T, proceed func(c caller) (time.Duration, <-chan struct{}, *tidegate.Error), leave func(c caller, first bool),
) {
	t.Helper()
	now := time.Now()
	for i, c := range slices.Backward(l.waiting) {
		late := !c.deadline.IsZero() && !now.Before(c.deadline)
		if left := !c.gone.IsZero() && !now.Before(c.gone); !late && !left {
			continue
		}
		first := i == 0 && l.entered
		leave(c, first)
		l.waiting = slices.Delete(l.waiting, i, i+1)
		if first {
			l.entered, l.changed = false, nil
		}
	}
	for len(l.waiting) > 0 {
		woken := l.changed == nil || !now.Before(l.timer)
		select {
		case <-l.changed:
			woken = true
			l.due++
		default:
		}
		if !woken {
			return
		}
		if !l.entered {
			l.due += 2 // when it becomes the first, and at its timer
		}
		l.entered = true
		l.calls++
		c := l.waiting[0]
		wait, changed, err := proceed(c)
		switch {
		case wait < 0, wait > 0 && changed == nil:
			t.Fatalf("the first caller waits %v, woken by %v: nothing wakes it", wait, changed)
		case wait > 0:
			if wait <= 2 {
				l.due++ // for the rounding of the previous wait
			}
			l.changed, l.timer = changed, now.Add(wait)
			if wait > math.MaxInt64/2 { // beyond the range that time.Time can add
				l.timer = now.Add(math.MaxInt64 / 2)
			}
			return
		case err == nil:
			l.served = append(l.served, grant{n: c.n, at: now})
		}
		l.waiting = l.waiting[1:]
		l.entered, l.changed = false, nil
	}
}

// next returns the time of the next event of a caller; zero if nothing waits.
func (l *line) next() time.Time {
	var next time.Time
	earlier := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for i, c := range l.waiting {
		earlier(c.deadline)
		earlier(c.gone)
		if i == 0 {
			earlier(l.timer)
		}
	}
	return next
}

// sleepUntil passes the time until the first event of a line, at most until end.
func sleepUntil(end time.Time, lines ...*line) {
	for _, l := range lines {
		if at := l.next(); !at.IsZero() && at.Before(end) {
			end = at
		}
	}
	time.Sleep(time.Until(end))
}

func randomCaller(r *rand.Rand, most int, long time.Duration) caller {
	c := caller{n: 1 + r.IntN(most)}
	switch r.IntN(3) {
	case 0:
		c.deadline = time.Now().Add(time.Duration(1 + r.Int64N(int64(long))))
	case 1:
		c.gone = time.Now().Add(time.Duration(1 + r.Int64N(int64(long))))
	}
	return c
}

// While callers wait at an Adaptive, a timer in the future or a changed pace wakes the first one.
// A caller has at most two wake-ups, and a throttle causes one. After the last throttle
// all of them leave when the bucket has regained the tokens that they wait for.
// The bucket permits no more than it regains and a burst.
func TestAdaptiveModel(t *testing.T) {
	sequences(t, func(t *testing.T, r *rand.Rand) {
		o := AdaptiveOptions{
			Floor:    rate.Limit([]float64{0.2, 1, 30}[r.IntN(3)]),
			Ceiling:  rate.Limit([]float64{0, 30, 1000}[r.IntN(3)]),
			Decrease: []float64{0, 0.5, 0.99}[r.IntN(3)],
			Increase: []float64{0, 0.001, 1}[r.IntN(3)],
		}
		a := assert.Value(NewAdaptive(o))(t)
		var l line
		proceed := func(c caller) (time.Duration, <-chan struct{}, *tidegate.Error) { return a.proceed(c.n, c.deadline) }
		leave := func(c caller, first bool) { a.leave(c.n, first) }
		for range 300 {
			switch r.IntN(6) {
			case 0, 1:
				c := randomCaller(r, 1+r.IntN(20), 20*time.Second)
				free := a.callers == 0
				waits, err := a.enter(c.n, c.deadline)
				switch {
				case waits:
					l.waiting = append(l.waiting, c)
				case err == nil && !free:
					t.Fatal("a new caller overtook the waiting ones")
				case err == nil:
					l.served = append(l.served, grant{n: c.n, at: time.Now()})
				}
			case 2:
				a.Observe(nil)
			case 3:
				a.Observe(errTest)
			default:
				sleepUntil(time.Now().Add(time.Duration(r.Int64N(int64(time.Second)))), &l)
			}
			l.run(t, proceed, leave)
			checkAdaptive(t, a, &l)
		}
		// The last event. The rest leaves at the forecast, give or take the rounding of each wait.
		l.run(t, proceed, leave)
		end := time.Now().Add(a.pace.until(a.waiting-a.tokens, a.rules) + time.Duration(len(l.waiting)))
		for len(l.waiting) > 0 && !time.Now().After(end) {
			sleepUntil(end.Add(1), &l)
			l.run(t, proceed, leave)
		}
		assert.MustThat(t, len(l.waiting) == 0, "%d callers wait after the last event and the time that their tokens need", len(l.waiting))
		checkAdaptive(t, a, &l)
	})
}

var errTest = &tidegate.Error{Code: tidegate.CodeTooManyRequests}

func checkAdaptive(t *testing.T, a *Adaptive, l *line) {
	t.Helper()
	sum := 0.0
	for _, c := range l.waiting {
		sum += float64(c.n)
	}
	assert.MustThat(t, a.callers == len(l.waiting) && !(math.Abs(a.waiting-sum) > 1e-6), "%d callers for %v tokens are counted, %d wait for %v", a.callers, a.waiting, len(l.waiting), sum)
	assert.MustThat(t, len(l.waiting) == 0 || l.timer.After(time.Now()), "the timer of the first caller is %v ago", time.Since(l.timer))
	assert.MustThat(t, l.calls <= l.due, "%d wake-ups, want at most %d", l.calls, l.due)
	most := math.Max(1, math.Ceil(float64(a.pace.limit)/10))
	if l.entered {
		most = math.Max(most, float64(l.waiting[0].n))
	}
	assert.MustThat(t, !(a.tokens > most) && !(a.tokens < -1), "the bucket has %v tokens, want -1 to %v", a.tokens, most)
	assert.MustThat(t, !(a.pace.limit < a.rules.Floor) && !(a.pace.limit > a.rules.Ceiling), "the limit is %v, want %v to %v", a.pace.limit, a.rules.Floor, a.rules.Ceiling)
}

// The same of a Keyed with several keys and changes of its limit.
func TestKeyedModel(t *testing.T) {
	sequences(t, func(t *testing.T, r *rand.Rand) {
		limits := []rate.Limit{0.5, 7, 1000, rate.Inf}
		k := assert.Value(NewKeyed[int](limits[r.IntN(3)], 5+r.IntN(10), time.Second))(t)
		const keys = 3
		lines := make([]*line, keys)
		buckets := make([]*bucket[int], keys) // of the waiting callers
		for i := range lines {
			lines[i] = &line{}
		}
		run := func() {
			for key, l := range lines {
				l.run(t, func(c caller) (time.Duration, <-chan struct{}, *tidegate.Error) {
					return k.proceed(buckets[key], c.n, c.deadline)
				}, func(c caller, _ bool) { k.leave(buckets[key], c.n) })
			}
		}
		for range 300 {
			switch r.IntN(6) {
			case 0, 1, 2:
				key, c := r.IntN(keys), randomCaller(r, 5, 20*time.Second)
				busy := len(lines[key].waiting) > 0
				b, err := k.enter(key, c.n, c.deadline)
				switch {
				case b != nil:
					buckets[key] = b
					lines[key].waiting = append(lines[key].waiting, c)
				case err == nil && busy && k.limit != rate.Inf:
					t.Fatal("a new caller overtook the waiting ones")
				}
			case 3:
				assert.Must(t, k.SetLimit(limits[r.IntN(4)], 1+r.IntN(15)))
			default:
				sleepUntil(time.Now().Add(time.Duration(r.Int64N(int64(time.Second)))), lines...)
			}
			run()
			checkKeyed(t, k, lines, buckets)
		}
		var end time.Time
		for key, l := range lines {
			if len(l.waiting) > 0 {
				b := buckets[key]
				at := time.Now().Add(timeFor(b.waiting-k.level(b, time.Now()), k.limit) + time.Duration(len(l.waiting)))
				if at.After(end) {
					end = at
				}
			}
		}
		for !time.Now().After(end) {
			sleepUntil(end.Add(1), lines...)
			run()
		}
		for key, l := range lines {
			assert.MustThat(t, len(l.waiting) == 0, "%d callers of key %d wait after the last event and the time that their tokens need", len(l.waiting), key)
		}
		checkKeyed(t, k, lines, buckets)
	})
}

func checkKeyed(t *testing.T, k *Keyed[int], lines []*line, buckets []*bucket[int]) {
	t.Helper()
	for key, l := range lines {
		assert.MustThat(t, l.calls <= l.due, "%d wake-ups of key %d, want at most %d", l.calls, key, l.due)
		if len(l.waiting) == 0 {
			continue
		}
		if b := buckets[key]; b.callers != len(l.waiting) || b.elem != nil || k.keys[key] != b {
			t.Fatalf("the bucket of key %d counts %d callers and can be removed, %d wait", key, b.callers, len(l.waiting))
		}
		assert.MustThat(t, l.timer.After(time.Now()), "the timer of the first caller of key %d is %v ago", key, time.Since(l.timer))
	}
}

// A Budget permits the retries of an exact model in integers, and reports the number that is left.
func TestBudgetModel(t *testing.T) {
	sequences(t, func(t *testing.T, r *rand.Rand) {
		capacity := 1 + r.IntN(20)
		// Tenths are exact in this model, in integers.
		tenths := 1 + r.IntN(10)
		b := assert.Value(NewBudget(BudgetOptions{Ratio: float64(tenths) / 10, Capacity: capacity}))(t)
		left := 10 * capacity
		for range 300 {
			if r.IntN(2) == 0 {
				n := r.IntN(5) - 1
				b.Earn(n)
				left = min(10*capacity, left+max(n, 0)*tenths)
			} else {
				p := Priority(r.IntN(3) - 1)
				reserve := map[Priority]int{Low: 5 * capacity, Normal: capacity, High: 0}[p]
				want := left >= max(10, reserve)
				if got := b.Spend(p); got != want {
					t.Fatalf("a retry of priority %d with %d tenths of %d left: %v, want %v", p, left, capacity, got, want)
				}
				if want {
					left -= 10
				}
			}
			got := b.Tokens()
			assert.MustThat(t, !(math.Abs(10*got-float64(left)) > 1e-6), "%v tokens are left, want %d tenths", got, left)
		}
		// After enough calls without retries each priority can retry.
		b.Earn(10*capacity/tenths + 1)
		for _, p := range []Priority{High, Normal, Low} {
			assert.MustThat(t, capacity < 3 || b.Spend(p), "priority %d is refused although the budget of %d is full", p, capacity)
			b.Earn(11)
		}
	})
}
