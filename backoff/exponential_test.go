package backoff

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// RocketMQ: sending retry and throttling: "INITIAL_BACKOFF: specifies the interval between the
// first failure and the first retry. Default value: 1 second"
// RocketMQ: sending retry and throttling: "MULTIPLIER : specifies the factor by which to multiply
// the interval after each failed retry. Default value: 1.6"
// RocketMQ: sending retry and throttling: "JITTER : specifies the factor by which to randomize
// intervals. Default value: 0.2"
// RocketMQ: sending retry and throttling: "MAX_BACKOFF: specifies the upper limit of an interval.
// Default value: 120 seconds"
// RocketMQ: sending retry and throttling: "MIN_CONNECT_TIMEOUT: specifies the minimum interval.
// Default value: 20 seconds"
func TestDefaultIsGRPCsBackoff(t *testing.T) {
	want := Exponential{Initial: time.Second, Multiplier: 1.6, Jitter: 0.2, Max: 2 * time.Minute, MinConnectTimeout: 20 * time.Second}
	assert.Equal(t, "Default =", Default(), want)
	assert.NoError(t, Default().Validate())
}

// TestPublishedBugs has the values at which other clients go wrong.
// RocketMQ: sending retry and throttling: "MULTIPLIER : specifies the factor by which to multiply
// the interval after each failed retry. Default value: 1.6"
// RocketMQ: sending retry and throttling: "MAX_BACKOFF: specifies the upper limit of an interval.
// Default value: 120 seconds"
func TestPublishedBugs(t *testing.T) {
	// rocketmq-clients (Go) keeps the delay in 32 bits of nanoseconds: 6.55 s
	// becomes 2.26 s, 26.8 s becomes 1.07 s, and 42.9 s, ten times 2^32 ns, none.
	want := []time.Duration{
		1_000_000_000, 1_600_000_000, 2_560_000_000, 4_096_000_000, 6_553_600_000, 10_485_760_000, 16_777_216_000,
		26_843_545_600, 42_949_672_960, 68_719_476_736, 109_951_162_778, 120_000_000_000, 120_000_000_000,
	}
	for n, d := range want {
		got := Default().Base(n)
		assert.That(t, got == d, "Default().Base(%d) = %v, want %v", n, got, d)
	}

	// pulsar-client-go #1384: shifting goes negative between n = 34 and 54.
	double := Exponential{Initial: time.Second, Multiplier: 2, Jitter: NoJitter, Max: 10 * time.Minute}
	for n := range 200 {
		want := 10 * time.Minute
		if n < 10 {
			want = time.Second << n
		}
		got := double.Delay(n)
		assert.That(t, got == want, "Delay(%d) = %v, want %v", n, got, want)
	}

	// watermill's retry also calls its policy for each report, and each call makes the delay grow.
	// Here a call changes nothing.
	for range 5 {
		assert.MustEqual(t, "Delay(1) =", double.Delay(1), 2*time.Second)
	}

	// gRPC's own first delay has no jitter.
	if lo, hi := Default().Range(0); lo != 800*time.Millisecond || hi != 1200*time.Millisecond {
		t.Errorf("Default().Range(0) = %v, %v, want 800ms, 1.2s", lo, hi)
	}
}

// TestFirstDelaysSpread: of a thousand clients rejected at once no more than 5 %
// may come back within the same 10 ms. It draws for a hundred such crowds, so
// that chance cannot fail it: a bucket's share is 2.5 % give or take 0.05 %.
// RocketMQ: sending retry and throttling: "JITTER : specifies the factor by which to randomize
// intervals. Default value: 0.2"
func TestFirstDelaysSpread(t *testing.T) {
	const draws = 100 * 1000
	buckets := map[time.Duration]int{}
	for range draws {
		buckets[Default().Delay(0).Truncate(10*time.Millisecond)]++
	}
	if len(buckets) < 40 || len(buckets) > 41 { // 1.2 s itself may begin the 41st
		t.Errorf("delays fall into %d buckets of 10 ms, want the 40 from 800 ms to 1.2 s", len(buckets))
	}
	for from, n := range buckets {
		assert.That(t, n <= draws*5/100, "%d of %d delays within 10 ms from %v, want at most 5 %%", n, draws, from)
	}
}

// RocketMQ: sending retry and throttling: "current_backoff = Min(current_backoff * MULTIPLIER,
// MAX_BACKOFF)"
// RocketMQ: sending retry and throttling: "current_deadline = now() + current_backoff +
// UniformRandom(-JITTER * current_backoff, JITTER * current_backoff)"
func TestExponentialTable(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	for _, c := range []struct {
		name   string
		e      Exponential
		n      int
		lo, hi time.Duration
	}{
		{"negative n is 0", Default(), -1, 800 * time.Millisecond, 1200 * time.Millisecond},
		{"smallest n is 0", Default(), math.MinInt, 800 * time.Millisecond, 1200 * time.Millisecond},
		{"jitter after the cap", Default(), 11, 96 * time.Second, 144 * time.Second},
		{"n of 2^31-1", Default(), math.MaxInt32, 96 * time.Second, 144 * time.Second},
		{"largest n", Default(), math.MaxInt, 96 * time.Second, 144 * time.Second},
		{"power is infinite", Exponential{Initial: 1, Multiplier: math.MaxFloat64, Jitter: NoJitter, Max: time.Hour}, 5, time.Hour, time.Hour},
		{"zero value", Exponential{}, 0, 800 * time.Millisecond, 1200 * time.Millisecond},
		{"only a maximum", Exponential{Max: time.Minute}, 50, 48 * time.Second, 72 * time.Second},
		{"only an initial delay above the usual maximum", Exponential{Initial: time.Hour}, 9, 48 * time.Minute, 72 * time.Minute},
		{"only no jitter", Exponential{Jitter: NoJitter}, 1, 1600 * time.Millisecond, 1600 * time.Millisecond},
		{"constant", Exponential{Initial: time.Minute, Multiplier: 1, Jitter: NoJitter, Max: time.Hour}, math.MaxInt, time.Minute, time.Minute},
		{"full jitter", Exponential{Initial: time.Minute, Multiplier: 2, Jitter: 1, Max: time.Hour}, 2, 0, 8 * time.Minute},
		{"only the multiplier", Exponential{Multiplier: 1}, 3, 800 * time.Millisecond, 1200 * time.Millisecond},
		{"longest duration", Exponential{Initial: longest, Multiplier: 3, Jitter: NoJitter, Max: longest}, 1, longest, longest},
		{"longest duration with jitter", Exponential{Initial: 1, Multiplier: 10, Jitter: 1, Max: longest / 2}, 99, 0, longest - 1},
		{"initial is kept to the nanosecond", Exponential{Initial: 1<<60 + 1, Multiplier: 1, Jitter: NoJitter, Max: longest}, 9, 1<<60 + 1, 1<<60 + 1},
		{"1.7 is below 1.7 in binary, yet the result is whole", Exponential{Initial: time.Second, Multiplier: 1.7, Jitter: NoJitter, Max: time.Hour}, 1,
			1700 * time.Millisecond, 1700 * time.Millisecond},
	} {
		assert.NoError(t, c.e.Validate(), "%s", c.name)
		lo, hi := c.e.Range(c.n)
		assert.That(t, lo == c.lo && hi == c.hi, "%s: Range(%d) = %v, %v, want %v, %v", c.name, c.n, lo, hi, c.lo, c.hi)
	}
}

func TestExponentialValidate(t *testing.T) {
	with := func(change func(*Exponential)) Exponential {
		e := Default()
		change(&e)
		return e
	}
	for _, c := range []struct {
		name string
		e    Exponential
		want []string // one for each line of the error
	}{
		{"negative initial", with(func(e *Exponential) { e.Initial = -1 }), []string{"Initial is -1ns; it must be more than 0"}},
		{"initial above max", with(func(e *Exponential) { e.Initial = time.Hour }), []string{"Max is 2m0s; it must be Initial (1h0m0s) or more"}},
		{"shrinking", with(func(e *Exponential) { e.Multiplier = 0.5 }), []string{"Multiplier is 0.5; it must be a finite number of at least 1, or 0 for the default"}},
		{"multiplier NaN", with(func(e *Exponential) { e.Multiplier = math.NaN() }), []string{"Multiplier is NaN"}},
		{"multiplier infinite", with(func(e *Exponential) { e.Multiplier = math.Inf(1) }), []string{"Multiplier is +Inf"}},
		{"jitter NaN", with(func(e *Exponential) { e.Jitter = math.NaN() }), []string{"Jitter is NaN"}},
		{"jitter negative", with(func(e *Exponential) { e.Jitter = -0.1 }), []string{"Jitter is -0.1"}},
		{"jitter in percent", with(func(e *Exponential) { e.Jitter = 20 }), []string{"Jitter is 20; it must be a number up to 1"}},
		{"overflow", with(func(e *Exponential) { e.Max = math.MaxInt64 }), []string{"Max is 2562047h47m16.854775807s; it must be at most"}},
		{"connect timeout", with(func(e *Exponential) { e.MinConnectTimeout = -time.Second }), []string{"MinConnectTimeout is -1s"}},
		{"all at once", Exponential{-1, -2, -3, -4, -5}, []string{"Initial", "Multiplier", "Jitter", "Max", "MinConnectTimeout"}},
	} {
		err := c.e.Validate()
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(c.want) {
			t.Errorf("%s: %d faults, want %d:\n%v", c.name, len(lines), len(c.want), err)
			continue
		}
		for i, want := range c.want {
			if !strings.HasPrefix(lines[i], "backoff: Exponential."+want) {
				t.Errorf("%s: %q, want it to begin with %q", c.name, lines[i], "backoff: Exponential."+want)
			}
		}
		// A value that is rejected waits for Max rather than not at all.
		lo, hi := c.e.Range(7)
		if want := max(c.e.Max, 0); lo != want || hi != want || c.e.Delay(7) != want || c.e.Base(7) != want {
			t.Errorf("%s: Range = %v, %v, Delay = %v, want %v", c.name, lo, hi, c.e.Delay(7), want)
		}
	}
}

// checkExponential checks the promises for a legal e and any n:
//   - Initial <= Base(n) <= Base(n+1) <= Max
//   - lo <= Delay(n) <= hi, and both lie around Base(n)
//   - 0 <= lo and hi <= Max * (1 + Jitter), to the rounding
func checkExponential(t *testing.T, e Exponential, n int) {
	// The documented meaning of zero and of NoJitter.
	policy := e
	if e.Max == 0 {
		e.Max = max(2*time.Minute, e.Initial)
	}
	if e.Initial == 0 {
		e.Initial = time.Second
	}
	if e.Multiplier == 0 {
		e.Multiplier = 1.6
	}
	switch e.Jitter {
	case 0:
		e.Jitter = 0.2
	case NoJitter:
		e.Jitter = 0
	}
	t.Helper()
	base, d := policy.Base(n), policy.Delay(n)
	lo, hi := policy.Range(n)
	assert.That(t, base >= e.Initial && base <= e.Max, "%+v: Base(%d) = %d, want it between Initial and Max", e, n, base)
	if n < math.MaxInt {
		next := policy.Base(n + 1)
		assert.That(t, next >= base, "%+v: Base(%d) = %d, Base(%d) = %d: decreases", e, n, base, n+1, next)
	}
	assert.That(t, lo >= 0 && lo <= base && hi >= base && d >= lo && d <= hi,
		"%+v: n %d: base %d, range %d to %d, delay %d", e, n, base, lo, hi, d)
	limit := new(big.Float).SetPrec(200).SetFloat64(e.Jitter)
	limit.Add(limit, big.NewFloat(1)).Mul(limit, new(big.Float).SetInt64(int64(e.Max)))
	// One nanosecond, and the rounding of a float64 near Max.
	slack := new(big.Float).SetFloat64(1 + float64(e.Max)*0x1p-52)
	assert.That(t, new(big.Float).SetInt64(int64(hi)).Cmp(limit.Add(limit, slack)) <= 0,
		"%+v: n %d: hi %d is above Max * (1 + Jitter)", e, n, hi)
}

// TestExponentialProperties draws legal configurations of every size, with
// multipliers close to 1 and n around powers of two, where math.Pow takes
// another path to its result.
//
// No delay overflows.
//
// RocketMQ: sending retry and throttling: "current_deadline = now() + current_backoff +
// UniformRandom(-JITTER * current_backoff, JITTER * current_backoff)"
func TestExponentialProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50_000 {
		e := Exponential{
			Initial:    time.Duration(r.Int64() >> r.IntN(63)),
			Multiplier: 1 + math.Ldexp(r.Float64(), -r.IntN(54)),
			Jitter:     []float64{NoJitter, 0, 1, 0.2, r.Float64()}[r.IntN(5)],
		}
		e.Max = e.Initial + min(time.Duration(r.Int64()>>r.IntN(63)), math.MaxInt64-e.Initial)
		if r.IntN(3) == 0 {
			e.Multiplier = 1 + r.ExpFloat64()*10
		}
		if e.Validate() != nil {
			continue // Max * (1 + Jitter) is too long
		}
		n := r.Int64N(1<<31+1) >> r.IntN(32)
		for _, n := range []int64{n, n | (n - 1), 1 << 31} {
			checkExponential(t, e, int(n)) // where int has 32 bits, 2^31 is negative and so 0
		}
		if t.Failed() {
			return
		}
	}
}

func FuzzExponential(f *testing.F) {
	f.Add(int64(time.Second), 1.6, 0.2, int64(2*time.Minute), int64(3))
	f.Add(int64(0), 0.0, 0.0, int64(0), int64(5))
	f.Add(int64(time.Second), 2.0, -1.0, int64(10*time.Minute), int64(34))
	f.Add(int64(1), math.MaxFloat64, 1.0, int64(math.MaxInt64/2), int64(1)<<31)
	f.Add(int64(math.MaxInt64), 1.0, -1.0, int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(int64(-1), math.NaN(), math.Inf(1), int64(-1), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, initial int64, multiplier, jitter float64, max, n int64) {
		e := Exponential{Initial: time.Duration(initial), Multiplier: multiplier, Jitter: jitter, Max: time.Duration(max)}
		if e.Validate() == nil {
			checkExponential(t, e, int(n))
		} else if d := e.Delay(int(n)); d < 0 {
			t.Errorf("%+v is not legal, and Delay(%d) = %v", e, n, d)
		}
	})
}

func TestSleep(t *testing.T) {
	stop := errors.New("stopped")
	for _, c := range []struct {
		name   string
		d      time.Duration
		end    time.Duration // when ctx ends; negative for never
		want   error
		waited time.Duration
	}{
		{"whole", time.Hour, -1, nil, time.Hour},
		{"cut short", time.Hour, time.Minute, stop, time.Minute},
		{"ended before", time.Hour, 0, stop, 0},
		{"nothing to wait for", 0, -1, nil, 0},
		{"negative", -time.Hour, -1, nil, 0},
		{"nothing to wait for, ended before", 0, 0, stop, 0},
	} {
		assert.Bubble(t, c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.end == 0 {
				cancel(stop)
			} else if c.end > 0 {
				defer time.AfterFunc(c.end, func() { cancel(stop) }).Stop()
			}
			start := time.Now()
			err := Sleep(ctx, c.d)
			assert.That(t, err == c.want, "Sleep = %v, want %v", err, c.want)
			assert.Equal(t, "waited for", time.Since(start), c.waited)
		})
	}
}

func TestStepsDelay(t *testing.T) {
	ladder := Steps{time.Second, time.Minute, time.Hour}
	for n, want := range map[int]time.Duration{
		math.MinInt: time.Second, -1: time.Second, 0: time.Second, 1: time.Minute, 2: time.Hour, 3: time.Hour,
		math.MaxInt: time.Hour,
	} {
		lo, hi := ladder.Range(n)
		d := ladder.Delay(n)
		assert.That(t, d == want && lo == want && hi == want, "n %d: Delay = %v, Range = %v, %v, want %v", n, d, lo, hi, want)
	}
	assert.Equal(t, "without steps", (Steps{}).Delay(5), 0)
	assert.Equal(t, "negative step", (Steps{-time.Second}).Delay(0), 0)
}

// RocketMQ: consumption retry: "Unordered messages (messages that are not ordered messages):
// incremental"
// RocketMQ: consumption retry: "If the number of retries exceeds 16, the interval of each
// subsequent retry is 2 hours"
func TestRetryLadderIsRocketMQs(t *testing.T) {
	const want = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
	assert.Equal(t, "RetryLadder =", RetryLadder().String(), want)
	assert.Equal(t, "the 17th retry comes after", RetryLadder().Delay(16), 2*time.Hour)
	RetryLadder()[0] = 0
	d := RetryLadder().Delay(0)
	assert.That(t, d == 10*time.Second, "a caller changed the ladder of the others: the first delay is %v", d)
}

func TestParseSteps(t *testing.T) {
	for text, want := range map[string]Steps{
		"1s 5s 10s 30s 1m 2m": {time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute},
		"\t500ms  1h30m\n":    {500 * time.Millisecond, 90 * time.Minute},
		"0 0s":                {0, 0},
		" ":                   nil,
	} {
		got, err := parseSteps(text)
		assert.That(t, err == nil && slices.Equal(got, want), "parseSteps(%q) = %v, %v, want %v", text, got, err, want)
	}

	_, err := parseSteps("1s 5 1m -2s 1d")
	assert.MustThat(t, err != nil, "no error")
	lines := strings.Split(err.Error(), "\n")
	for i, want := range []string{`step 2 of 5, "5", is not a duration`, `step 4 of 5, "-2s", is negative`, `step 5 of 5, "1d", is not a duration`} {
		assert.That(t, i < len(lines) && strings.Contains(lines[i], want), "error\n%v\nhas no line %d with %q", err, i+1, want)
	}
}

func TestStepsString(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m", 10 * time.Minute: "10m", 70 * time.Minute: "1h10m",
		time.Hour + time.Second: "1h0m1s", 500 * time.Millisecond: "500ms", 0: "0s", 100 * time.Hour: "100h",
		time.Minute + 10*time.Second: "1m10s",
	} {
		got := (Steps{d}).String()
		assert.That(t, got == want, "%v prints as %q, want %q", d, got, want)
	}
}

func TestStepsInJSON(t *testing.T) {
	type config struct{ Retry, None Steps }
	text, err := json.Marshal(config{Retry: Steps{time.Second, time.Minute}})
	want := `{"Retry":"1s 1m","None":""}`
	assert.That(t, err == nil && string(text) == want, "Marshal = %s, %v, want %s", text, err, want)
	var c config
	if err := json.Unmarshal(text, &c); err != nil || c.Retry.String() != "1s 1m" || len(c.None) != 0 {
		t.Errorf("Unmarshal = %+v, %v", c, err)
	}
	if err := c.Retry.UnmarshalText([]byte("2s x")); err == nil || c.Retry.String() != "1s 1m" {
		t.Errorf("after a failed UnmarshalText (%v) the ladder is %v, want it unchanged", err, c.Retry)
	}
	if text, err := (Steps{0, -1}).MarshalText(); err == nil || !strings.Contains(err.Error(), "step 2 of 2 is -1ns") {
		t.Errorf("MarshalText of a negative step = %q, %v", text, err)
	}
}

// FuzzStepsRoundTrip: every duration of 0 or more is printed in a form without
// blanks that is read back exactly, and no longer than time's own.
func FuzzStepsRoundTrip(f *testing.F) {
	for _, d := range []int64{0, 1, 999, 1001, 1e9, 60e9, 3600e9, 3660e9, 5400e9, 36000e9, 3600e9 + 1, math.MaxInt64} {
		f.Add(d, d/7)
	}
	f.Fuzz(func(t *testing.T, a, b int64) {
		in := Steps{time.Duration(a & math.MaxInt64), time.Duration(b & math.MaxInt64)}
		out, err := parseSteps(in.String())
		assert.That(t, err == nil && slices.Equal(in, out), "%d prints as %q and is read back as %d, %v", in, in, out, err)
		if len(short(in[0])) > len(in[0].String()) {
			t.Errorf("%q is longer than %q", short(in[0]), in[0])
		}
	})
}

// FuzzParseSteps: the result is legal and has a step for every word. Printing and reading it again
// gives the same steps.
func FuzzParseSteps(f *testing.F) {
	f.Add("1s 5s 10s 30s 1m 2m")
	f.Add("1.5h -0s +3us 9223372036854775807ns 9223372036854775808ns")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSteps(text)
		if err != nil {
			assert.That(t, s == nil, "steps %v beside error %v", s, err)
			return
		}
		assert.That(t, len(s) == len(strings.Fields(text)) && s.Validate() == nil, "%q is read as %v (%v)", text, s, s.Validate())
		if again, err := parseSteps(s.String()); err != nil || !slices.Equal(s, again) {
			t.Errorf("%q is read as %v, which is read as %v, %v", text, s, again, err)
		}
	})
}

// TestRetryLadderTakes4h46m compares the total with a sum by hand (RocketMQ: consumption retry):
// 10 + 30 s, 1 to 10 min, 20 + 30 min, 1 + 2 h are 17 140 s, 4 h 45 min 40 s.
func TestRetryLadderTakes4h46m(t *testing.T) {
	s := Preview(RetryLadder(), 16)
	last := s[len(s)-1]
	if want := 17140 * time.Second; last.Retry != 16 || last.TotalLo != want || last.TotalHi != want {
		t.Errorf("after retry %d the totals are %v and %v, want %v after 16", last.Retry, last.TotalLo, last.TotalHi, want)
	}
	text := s.String()
	assert.That(t, strings.HasSuffix(text, "\n16 retries in 4h46m"), "the table does not end with 16 retries in 4h46m:\n%s", text)
}

func TestPreviewTotals(t *testing.T) {
	s := Preview(Default(), 30)
	var lo, hi time.Duration
	for i, st := range s {
		l, h := Default().Range(i)
		lo, hi = lo+l, hi+h
		want := (Stage{Retry: i + 1, Lo: l, Hi: h, TotalLo: lo, TotalHi: hi})
		assert.That(t, st == want, "stage %d is %+v, want %+v", i, st, want)
	}
	assert.Equal(t, "stages", len(s), 30)
}

func TestPreviewEdges(t *testing.T) {
	for _, n := range []int{0, -1, math.MinInt} {
		s := Preview(RetryLadder(), n)
		assert.That(t, len(s) == 0 && s.String() == "no retries", "Preview of %d retries is %v", n, s)
	}
	text := Preview(Steps{time.Second}, 1).String()
	assert.That(t, strings.HasSuffix(text, "\n1 retry in 1s"), "one retry:\n%s", text)
	long := Preview(Steps{math.MaxInt64 - 1, 1, 1}, 3)
	assert.That(t, long[1].TotalHi == math.MaxInt64 && long[2].TotalHi == math.MaxInt64, "totals overflow: %v", long)
}

func TestScheduleString(t *testing.T) {
	ladder := Steps{1500 * time.Nanosecond, 1234567 * time.Microsecond, 61500 * time.Millisecond, 100*time.Hour + 40*time.Second}
	const want = `retry   after   total
    1   1.5µs   1.5µs
    2   1.23s   1.23s
    3    1m2s    1m3s
    4  100h1m  100h2m
4 retries in 100h2m`
	got := Preview(ladder, 4).String()
	assert.That(t, got == want, "got\n%s\nwant\n%s", got, want)

	const jittered = `retry           after           total
    1   800ms to 1.2s   800ms to 1.2s
    2  1.28s to 1.92s  2.08s to 3.12s
2 retries in 2.08s to 3.12s`
	got = Preview(Default(), 2).String()
	assert.That(t, got == jittered, "got\n%s\nwant\n%s", got, jittered)
}

// every is a policy that does not know its bounds.
type every time.Duration

func (e every) Delay(n int) time.Duration { return time.Duration(e) * time.Duration(n+1) }

func TestRangeOf(t *testing.T) {
	lo, hi := rangeOf(every(time.Second), 2)
	assert.That(t, lo == 3*time.Second && hi == lo, "Range(2) = %v, %v, want 3s twice", lo, hi)
	lo, hi = rangeOf(Default(), 0)
	assert.That(t, lo == 800*time.Millisecond && hi == 1200*time.Millisecond, "Range(0) = %v, %v, want its own 800ms, 1.2s", lo, hi)
}
