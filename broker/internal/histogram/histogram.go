// Package histogram counts observations by size, for metrics: an observation
// is two atomic additions and no allocation.
package histogram

import (
	"sync/atomic"
	"time"
)

// A Histogram counts whole numbers in buckets. Goroutines may share it.
type Histogram struct {
	bounds []int64         // of the buckets, each inclusive, in ascending order
	counts []atomic.Uint64 // by bucket; one more than bounds, for what is above
	sum    atomic.Int64
}

// New returns a histogram whose buckets end at the given bounds, which are in
// ascending order.
func New(bounds ...int64) *Histogram {
	return &Histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

// Durations returns a histogram of times from 100 µs to 60 s, in nanoseconds.
func Durations() *Histogram {
	const ms = int64(time.Millisecond)
	return New(ms/10, ms/4, ms/2, ms, 5*ms/2, 5*ms, 10*ms, 25*ms, 50*ms, 100*ms, 250*ms, 500*ms,
		1000*ms, 2500*ms, 10_000*ms, 60_000*ms)
}

// Sizes returns a histogram of counts from 1 to 4096.
func Sizes() *Histogram {
	return New(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
}

// Observe counts v. What is below 0 counts as 0: clocks may step back.
func (h *Histogram) Observe(v int64) {
	v = max(v, 0)
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(v)
}

// A Snapshot is what a histogram had counted at one moment. Observations of
// that moment may be in Counts and not yet in Sum.
type Snapshot struct {
	Bounds []int64  // shared: not to be changed
	Counts []uint64 // by bucket, those of smaller buckets not included; one more than Bounds
	Sum    int64
}

// Snapshot returns what was counted so far.
func (h *Histogram) Snapshot() Snapshot {
	s := Snapshot{Bounds: h.bounds, Counts: make([]uint64, len(h.counts)), Sum: h.sum.Load()}
	for i := range h.counts {
		s.Counts[i] = h.counts[i].Load()
	}
	return s
}
