package store

import (
	"slices"
	"testing"
)

func TestSnapshot(t *testing.T) {
	h := of(1000, 10_000, 100_000).Histogram
	for _, v := range []float64{0, 1000, 2000, 10_000, 11_000, 100_000, 101_000, 1e12} {
		h.Observe(v)
	}
	for _, c := range []struct {
		buckets int
		bounds  []float64
		counts  []uint64
	}{
		{1, []float64{1, 10, 100}, []uint64{2, 2, 2, 2}},
		{2, []float64{10}, []uint64{4, 4}},
		{3, []float64{100}, []uint64{6, 2}},
	} {
		s := Histogram{h, 1000, c.buckets}.Snapshot()
		if want := 1 + 2 + 10 + 11 + 100 + 101 + 1e9; !slices.Equal(s.Bounds, c.bounds) || !slices.Equal(s.Counts, c.counts) || s.Sum != want {
			t.Errorf("one of %d buckets: %+v, want %v, %v and a sum of %v", c.buckets, s, c.bounds, c.counts, want)
		}
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	h := DurationHistogram()
	if n := testing.AllocsPerRun(100, func() { h.Observe(0.012) }); n != 0 {
		t.Errorf("%g allocations for an observation, want 0", n)
	}
}
