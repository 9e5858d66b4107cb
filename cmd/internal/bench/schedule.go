// Package bench measures the rate and the latency of operations: as fast as callers can (a closed
// loop), or at a constant rate, each latency from the time at which the operation was due (an open
// loop). A run of the open loop that could not keep its rate is not valid, and has no figures that
// one could quote.
package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Arrivals is the distribution of the due times of an open loop.
type Arrivals string

// The distributions.
const (
	Even    Arrivals = "even"    // at equal intervals
	Poisson Arrivals = "poisson" // at random, as independent users come
)

// A schedule returns the due times of an open loop, as durations from its start.
type schedule struct {
	rate     float64 // operations a second
	arrivals Arrivals
	random   *rand.Rand

	n    int64
	last float64 // seconds
}

func newSchedule(rate float64, a Arrivals, seed uint64) *schedule {
	return &schedule{rate: rate, arrivals: a, random: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // a repeatable load needs no secret
}

// next returns the due time of the next operation. It never decreases.
func (s *schedule) next() time.Duration {
	if s.arrivals == Poisson {
		s.last += -math.Log(1-s.random.Float64()) / s.rate
	} else {
		s.last = float64(s.n) / s.rate
	}
	s.n++
	return time.Duration(s.last * float64(time.Second))
}

// Validate returns an error if there is no such distribution.
func (a Arrivals) Validate() error {
	if a != Even && a != Poisson {
		return fmt.Errorf("the arrivals are %q; they are %s or %s", a, Even, Poisson)
	}
	return nil
}
