package backoff

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

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
