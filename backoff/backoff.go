// Package backoff computes the wait before a retry. Its policies are functions of the retry's
// number alone. They have no state, so several goroutines can share one, [Preview] can print it,
// and tests can compare a delay with its bounds (Range).
//
// [Exponential] is gRPC's connection backoff, which RocketMQ uses for throttled sends (RocketMQ:
// sending retry and throttling). [Steps] is a list of fixed delays, which RocketMQ uses for
// consumption retry (RocketMQ: consumption retry).
package backoff

import (
	"cmp"
	"context"
	"encoding"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"
)

// A Policy returns the wait before retry n; 0 is the first retry. A negative n means 0. The delay
// is never negative. Delay changes nothing, so several goroutines may share a Policy.
//
// A policy with random delays should also have the method Range(n int) (lo, hi time.Duration),
// which returns their bounds, as [Exponential] does. [Preview] uses it.
type Policy interface {
	Delay(n int) time.Duration
}

// ranged is a policy that reports the bounds of its delays: lo <= Delay(n) <= hi.
type ranged interface {
	Range(n int) (lo, hi time.Duration)
}

// rangeOf returns the bounds of p.Delay(n). Without a method Range they are one delay.
func rangeOf(p Policy, n int) (lo, hi time.Duration) {
	if r, ok := p.(ranged); ok {
		return r.Range(n)
	}
	d := p.Delay(n)
	return d, d
}

// Sleep waits until d is over or ctx ends. It returns nil if d is over and ctx has not ended, and
// context.Cause(ctx) otherwise. A d of 0 or less is over at once.
func Sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	// Checked after the timer too, because select chooses at random if both are ready.
	return context.Cause(ctx)
}

// A Stage is one retry of a [Schedule].
type Stage struct {
	// Retry is the number of the retry, 1 for the first.
	Retry int

	// Lo and Hi are the bounds of the delay before the retry.
	Lo, Hi time.Duration

	// TotalLo and TotalHi are the bounds of the sum of all delays up to this one. They do not
	// exceed the largest time.Duration.
	TotalLo, TotalHi time.Duration
}

// A Schedule lists the retries of a policy with their delays.
type Schedule []Stage

// Preview returns the first n retries of p, one Stage each. It returns none if n is 0 or less. The
// bounds of a policy without a method Range are one call of its Delay.
func Preview(p Policy, n int) Schedule {
	var s Schedule
	var totalLo, totalHi time.Duration
	for i := range n {
		lo, hi := rangeOf(p, i)
		totalLo, totalHi = add(totalLo, lo), add(totalHi, hi)
		s = append(s, Stage{Retry: i + 1, Lo: lo, Hi: hi, TotalLo: totalLo, TotalHi: totalHi})
	}
	return s
}

// add returns a+b, neither negative, or the largest Duration if that is less.
func add(a, b time.Duration) time.Duration {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// String returns a table with a line for each retry, its delay and the total, and a last line such
// as "16 retries in 4h46m".
//
// It rounds to minutes from one hour on, to seconds from one minute on, and to hundredths of a
// second from one second on. The stages are exact.
func (s Schedule) String() string {
	if len(s) == 0 {
		return "no retries"
	}
	rows := [][3]string{{"retry", "after", "total"}}
	for _, st := range s {
		rows = append(rows, [3]string{fmt.Sprint(st.Retry), span(st.Lo, st.Hi), span(st.TotalLo, st.TotalHi)})
	}
	var width [3]int
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell)) // µs
		}
	}
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "%*s  %*s  %*s\n", width[0], row[0], width[1], row[1], width[2], row[2])
	}
	last := s[len(s)-1]
	noun := "retries"
	if len(s) == 1 {
		noun = "retry"
	}
	fmt.Fprintf(&b, "%d %s in %s", len(s), noun, span(last.TotalLo, last.TotalHi))
	return b.String()
}

// span returns a rounded duration, or two if they still differ when rounded.
func span(lo, hi time.Duration) string {
	a, b := rounded(lo), rounded(hi)
	if a == b {
		return a
	}
	return a + " to " + b
}

func rounded(d time.Duration) string {
	switch {
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	}
	return short(d)
}

var (
	_ Policy = Exponential{}
	_ ranged = Exponential{}
)

// NoJitter as Exponential.Jitter makes every delay equal to [Exponential.Base].
const NoJitter = -1

// An Exponential is gRPC's connection backoff (connection-backoff.md) with the parameters of
// "RocketMQ: sending retry and throttling". One thing differs from gRPC: the first delay has jitter
// too, because clients that are throttled at the same time must not retry at the same time.
//
//	delay(n) = min(Initial * Multiplier^n, Max) * random(1-Jitter, 1+Jitter)
//
// A zero field means its default, so Exponential{Max: time.Minute} is the default policy with a
// lower maximum, and the zero value is [Default].
//
// Call Validate to check a value. The methods of an invalid value return Max without jitter, or 0
// if Max is negative.
type Exponential struct {
	// Initial is the first delay before jitter: INITIAL_BACKOFF. At most Max. Default: 1 s.
	Initial time.Duration

	// Multiplier is the factor between consecutive delays: MULTIPLIER. At least 1. Default: 1.6.
	Multiplier float64

	// Jitter is the largest part of a delay that is added or subtracted at random: JITTER. At most
	// 1; [NoJitter] means none. It is applied after Max, so the longest delay is Max * (1 +
	// Jitter). Default: 0.2.
	Jitter float64

	// Max is the longest delay before jitter: MAX_BACKOFF. Max * (1 + Jitter) must fit into a
	// time.Duration (292 years). Default: 120 s, or Initial if that is longer.
	Max time.Duration

	// MinConnectTimeout is the shortest timeout of an attempt to connect: MIN_CONNECT_TIMEOUT. It
	// does not change the delays. Default: 20 s.
	MinConnectTimeout time.Duration
}

// Default returns the values of RocketMQ and gRPC: INITIAL_BACKOFF 1 s, MULTIPLIER 1.6, JITTER 0.2,
// MAX_BACKOFF 120 s, MIN_CONNECT_TIMEOUT 20 s.
func Default() Exponential {
	return Exponential{
		Initial:           time.Second,
		Multiplier:        1.6,
		Jitter:            0.2,
		Max:               120 * time.Second,
		MinConnectTimeout: 20 * time.Second,
	}
}

// Filled returns e with defaults in the zero fields.
func (e Exponential) Filled() Exponential {
	d := Default()
	e.Initial = cmp.Or(e.Initial, d.Initial)
	e.Multiplier = cmp.Or(e.Multiplier, d.Multiplier)
	e.Jitter = cmp.Or(e.Jitter, d.Jitter)
	e.Max = cmp.Or(e.Max, max(d.Max, e.Initial))
	e.MinConnectTimeout = cmp.Or(e.MinConnectTimeout, d.MinConnectTimeout)
	return e
}

// Delay returns a random delay within Range(n), uniformly distributed.
func (e Exponential) Delay(n int) time.Duration {
	lo, hi := e.Range(n)
	// Does not overflow: hi-lo is twice the same whole number, so it is even.
	return lo + rand.N(hi-lo+1)
}

// Range returns the bounds of Delay(n), rounded to nanoseconds: Base(n) minus and plus its share of
// Jitter. A negative n means 0.
func (e Exponential) Range(n int) (lo, hi time.Duration) {
	base := e.Base(n)
	if e = e.Filled(); e.Validate() != nil {
		return base, base
	}
	s := spread(base, e.Jitter)
	return base - s, base + s
}

// Base returns the delay before retry n without jitter: min(Initial * Multiplier^n, Max). It never
// decreases as n grows. A negative n means 0.
func (e Exponential) Base(n int) time.Duration {
	if e = e.Filled(); e.Validate() != nil {
		return max(e.Max, 0) // too long a wait does less harm than too short a wait
	}
	// Compared as a float before the conversion, because for large n the product exceeds any
	// Duration, or is infinite.
	d := float64(e.Initial) * math.Pow(e.Multiplier, float64(max(n, 0)))
	if d >= float64(e.Max) {
		return e.Max
	}
	// A float64 is coarser than a Duration of more than 104 days. The rounded value must stay
	// within the bounds.
	return min(max(time.Duration(math.Round(d)), e.Initial), e.Max)
}

// spread returns the largest part of d that jitter adds or subtracts.
func spread(d time.Duration, jitter float64) time.Duration {
	if jitter == NoJitter {
		return 0
	}
	if s := math.Round(float64(d) * jitter); s < float64(d) {
		return time.Duration(s)
	}
	return d
}

// Validate returns an error that lists every invalid field with its value and the valid ones, or
// nil.
func (e Exponential) Validate() error {
	e = e.Filled()
	var errs []error
	refuse := func(field string, value any, legal string) {
		errs = append(errs, fmt.Errorf("backoff: Exponential.%s is %v; it must be %s", field, value, legal))
	}
	if e.Initial < 0 {
		refuse("Initial", e.Initial, "more than 0, or 0 for the default")
	}
	if !(e.Multiplier >= 1) || math.IsInf(e.Multiplier, 0) { // NaN is not >= 1
		refuse("Multiplier", e.Multiplier, "a finite number of at least 1, or 0 for the default")
	}
	jitterOK := e.Jitter > 0 && e.Jitter <= 1 || e.Jitter == NoJitter
	if !jitterOK {
		refuse("Jitter", e.Jitter, "a number up to 1, 0 for the default, or NoJitter")
	}
	switch {
	case e.Max < 0:
		refuse("Max", e.Max, "more than 0, or 0 for the default")
	case e.Initial > e.Max:
		refuse("Max", e.Max, fmt.Sprintf("Initial (%v) or more", e.Initial))
	case jitterOK && spread(e.Max, e.Jitter) > math.MaxInt64-e.Max:
		refuse("Max", e.Max, fmt.Sprintf("at most %v after the Jitter of %v is added",
			time.Duration(math.MaxInt64), e.Jitter))
	}
	if e.MinConnectTimeout < 0 {
		refuse("MinConnectTimeout", e.MinConnectTimeout, "more than 0, or 0 for the default")
	}
	return errors.Join(errs...)
}

var (
	_ Policy                   = Steps{}
	_ ranged                   = Steps{}
	_ encoding.TextMarshaler   = Steps{}
	_ encoding.TextUnmarshaler = (*Steps)(nil)
)

// Steps is a list of fixed delays. The first step is the delay before the first retry; the last
// step repeats without end. An empty list means no delay.
//
// The text form is that of RocketMQ's messageDelayLevel, "1s 5s 10s 30s 1m 2m"; UnmarshalText
// reads it. Several goroutines may share a list if none changes it.
type Steps []time.Duration

// RetryLadder returns a new copy of RocketMQ's retry schedule for unordered messages (RocketMQ:
// consumption retry): 16 delays from 10 s to 2 h. All later delays are 2 h.
func RetryLadder() Steps {
	return Steps{
		10 * time.Second, 30 * time.Second, 1 * time.Minute, 2 * time.Minute,
		3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute,
		7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute,
		20 * time.Minute, 30 * time.Minute, 1 * time.Hour, 2 * time.Hour,
	}
}

// Delay returns step n, counted from 0, or the last step if n is larger. A negative n means 0. A
// negative step, which Validate rejects, means 0.
func (s Steps) Delay(n int) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return max(s[min(max(n, 0), len(s)-1)], 0)
}

// Range returns Delay(n) twice, because the steps have no jitter.
func (s Steps) Range(n int) (lo, hi time.Duration) {
	d := s.Delay(n)
	return d, d
}

// Validate returns an error that lists every negative step by its position, counted from 1, or nil.
// Steps may decrease, and there may be none.
func (s Steps) Validate() error {
	var errs []error
	for i, d := range s {
		if d < 0 {
			errs = append(errs, fmt.Errorf("backoff: step %d of %d is %v; it must be 0s or more", i+1, len(s), d))
		}
	}
	return errors.Join(errs...)
}

// parseSteps parses the text form.
func parseSteps(text string) (Steps, error) {
	var s Steps
	var errs []error
	words := strings.Fields(text)
	for i, word := range words {
		d, err := time.ParseDuration(word)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("backoff: step %d of %d, %q, is not a duration; give one such as 500ms, 10s or 1h30m",
				i+1, len(words), word))
		case d < 0:
			errs = append(errs, fmt.Errorf("backoff: step %d of %d, %q, is negative; it must be 0s or more",
				i+1, len(words), word))
		default:
			s = append(s, d)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// String returns the steps in the form that UnmarshalText reads: "10s 1m 1h30m".
func (s Steps) String() string {
	words := make([]string, len(s))
	for i, d := range s {
		words[i] = short(d)
	}
	return strings.Join(words, " ")
}

// MarshalText returns String, or the error of Validate.
func (s Steps) MarshalText() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return []byte(s.String()), nil
}

// UnmarshalText sets s to the durations of text, such as "500ms 1m 1h30m": each in the form of
// [time.ParseDuration], separated by white space. Text without words means no steps. The error
// lists every word that is not a duration, or is negative, with its position, counted from 1; s is
// then unchanged.
func (s *Steps) UnmarshalText(text []byte) error {
	parsed, err := parseSteps(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// short returns d as its String method does, but without the minutes and
// seconds that are 0: 1m rather than 1m0s, 1h rather than 1h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
