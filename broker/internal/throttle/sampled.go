package throttle

import (
	"sync"
	"time"
)

const (
	// sampleEvery is the least age of the sample that a later one replaces.
	sampleEvery = 5 * time.Second

	// maxSampleAge is the age from which a sample does not describe the present rate.
	maxSampleAge = time.Minute
)

// A Sampled computes the rate of a counter from its values at the moments of the calls. So a
// counter without readers costs nothing. Goroutines may share a Sampled. The zero value is ready
// for use.
type Sampled struct {
	mu           sync.Mutex
	older, newer sample // guarded by mu
}

// A sample is a value of a counter.
type sample struct {
	at    time.Time
	total int64
}

// Rate returns the increase per second: over the last 5 to 10 s with frequent calls, at most over
// the last minute. It is 0 if no call was within the last minute.
func (s *Sampled) Rate(total int64, now time.Time) (perSecond float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.older.at) > maxSampleAge {
		s.older, s.newer = s.newer, sample{}
	}
	if d := now.Sub(s.older.at); d > 0 && d <= maxSampleAge {
		perSecond = float64(max(0, total-s.older.total)) / d.Seconds()
	} else {
		s.older, s.newer = sample{now, total}, sample{}
	}
	switch {
	case s.newer.at.IsZero() && now.Sub(s.older.at) >= sampleEvery:
		s.newer = sample{now, total}
	case !s.newer.at.IsZero() && now.Sub(s.newer.at) >= sampleEvery:
		s.older, s.newer = s.newer, sample{now, total}
	}
	return perSecond
}
