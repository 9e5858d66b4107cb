package bench

// A Search finds the highest rate that still holds by halving an interval.
type Search struct {
	Low, High float64 // the highest rate that held, and the lowest one that did not
	tries     int
}

// The end of a search.
const (
	closeEnough = 0.05 // of High
	maxTries    = 10
)

// Next returns the rate to try. It returns false at the end of the search.
func (s *Search) Next() (rate float64, ok bool) {
	if s.tries == maxTries || s.High-s.Low <= closeEnough*s.High {
		return 0, false
	}
	return (s.Low + s.High) / 2, true
}

// Tried narrows the interval by the result of a rate.
func (s *Search) Tried(rate float64, holds bool) {
	s.tries++
	if holds {
		s.Low = rate
	} else {
		s.High = rate
	}
}

// Holds reports whether a round of an open loop is valid, without failures, and has a p99 of at
// most some microseconds. With too few operations for a p99 the largest latency counts.
func Holds(r Round, micros float64) bool {
	if r.Invalid != "" || r.Response == nil || len(r.Failed) > 0 {
		return false
	}
	p99 := r.Response.P99
	if p99 < 0 {
		p99 = r.Response.Max
	}
	return p99 <= micros
}
