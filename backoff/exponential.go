package backoff

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

var (
	_ Policy = Exponential{}
	_ Ranger = Exponential{}
)

// An Exponential is the connection backoff of gRPC (connection-backoff.md),
// with the parameters that seed 004 gives for throttled sends. It differs in
// one thing: the first delay has jitter too, since a thousand clients refused
// at once must not come back at once.
//
//	delay(n) = min(Initial * Multiplier^n, Max) * random(1-Jitter, 1+Jitter)
//
// All fields are taken literally; the zero value is not legal. [Default] has
// the usual ones. A method cannot report that a value is not legal, so check
// with Validate first: one that Validate refuses always waits for Max, without
// jitter, or not at all if Max is negative.
type Exponential struct {
	// Initial is the first delay before jitter: INITIAL_BACKOFF, 1 s by
	// default. 0 to Max; 0 makes every delay 0.
	Initial time.Duration

	// Multiplier is what a delay grows by, from one retry to the next:
	// MULTIPLIER, 1.6 by default. 1 or more.
	Multiplier float64

	// Jitter is the share of a delay that chance may add or take away:
	// JITTER, 0.2 by default. 0 to 1. It is applied after Max, so a delay can
	// be as long as Max * (1 + Jitter), and no longer.
	Jitter float64

	// Max is the longest delay before jitter: MAX_BACKOFF, 120 s by default.
	// Max * (1 + Jitter) has to be a time.Duration, which ends at 292 years.
	Max time.Duration

	// MinConnectTimeout is the least time that an attempt to connect is
	// given: MIN_CONNECT_TIMEOUT, 20 s by default. 0 or more. No delay depends
	// on it; it is here for those who connect.
	MinConnectTimeout time.Duration
}

// Default returns the values of seed 004, which are gRPC's: INITIAL_BACKOFF
// 1 s, MULTIPLIER 1.6, JITTER 0.2, MAX_BACKOFF 120 s, MIN_CONNECT_TIMEOUT 20 s.
func Default() Exponential {
	return Exponential{
		Initial:           time.Second,
		Multiplier:        1.6,
		Jitter:            0.2,
		Max:               120 * time.Second,
		MinConnectTimeout: 20 * time.Second,
	}
}

// Delay returns a delay between the bounds of Range(n), any of them as likely
// as the others.
func (e Exponential) Delay(n int) time.Duration {
	lo, hi := e.Range(n)
	// Does not overflow: hi-lo is twice the same whole number, so it is even.
	return lo + rand.N(hi-lo+1)
}

// Range returns the bounds that Delay(n) falls in, both included and rounded
// to nanoseconds: Base(n) less and plus its share of Jitter. A negative n is
// treated as 0.
func (e Exponential) Range(n int) (lo, hi time.Duration) {
	base := e.Base(n)
	if e.Validate() != nil {
		return base, base
	}
	s := spread(base, e.Jitter)
	return base - s, base + s
}

// Base returns the delay before retry n without jitter:
// min(Initial * Multiplier^n, Max). It never decreases as n grows. A negative
// n is treated as 0.
func (e Exponential) Base(n int) time.Duration {
	if e.Validate() != nil {
		return max(e.Max, 0) // too slow does less harm than too fast
	}
	// Compared as a float before it is converted: from some n on the product
	// is beyond any Duration, or infinite. 0 * Inf is NaN, hence the first test.
	d := float64(e.Initial)
	if d > 0 {
		d *= math.Pow(e.Multiplier, float64(max(n, 0)))
	}
	if d >= float64(e.Max) {
		return e.Max
	}
	// A float64 is coarser than a Duration of more than 104 days: rounding
	// must not lead out of the bounds.
	return min(max(time.Duration(math.Round(d)), e.Initial), e.Max)
}

// spread returns the part of d that jitter may add or take away.
func spread(d time.Duration, jitter float64) time.Duration {
	if s := math.Round(float64(d) * jitter); s < float64(d) {
		return time.Duration(s)
	}
	return d
}

// Validate returns an error that names every field whose value is not legal,
// with the value and what is legal; nil if there is none.
func (e Exponential) Validate() error {
	var errs []error
	refuse := func(field string, value any, legal string) {
		errs = append(errs, fmt.Errorf("backoff: Exponential.%s is %v; legal is %s", field, value, legal))
	}
	if e.Initial < 0 {
		refuse("Initial", e.Initial, "0 or more")
	}
	if !(e.Multiplier >= 1) || math.IsInf(e.Multiplier, 0) { // NaN is not >= 1
		refuse("Multiplier", e.Multiplier, "a finite number of at least 1")
	}
	jitterOK := e.Jitter >= 0 && e.Jitter <= 1
	if !jitterOK {
		refuse("Jitter", e.Jitter, "a number from 0 to 1")
	}
	switch {
	case e.Max < 0:
		refuse("Max", e.Max, "0 or more")
	case e.Initial > e.Max:
		refuse("Max", e.Max, fmt.Sprintf("Initial (%v) or more", e.Initial))
	case jitterOK && spread(e.Max, e.Jitter) > math.MaxInt64-e.Max:
		refuse("Max", e.Max, fmt.Sprintf("what is at most %v after a Jitter of %v is added",
			time.Duration(math.MaxInt64), e.Jitter))
	}
	if e.MinConnectTimeout < 0 {
		refuse("MinConnectTimeout", e.MinConnectTimeout, "0 or more")
	}
	return errors.Join(errs...)
}
