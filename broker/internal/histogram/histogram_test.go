package histogram

import (
	"slices"
	"sync"
	"testing"
)

func TestObserve(t *testing.T) {
	h := New(1, 10, 100)
	for _, v := range []int64{-5, 0, 1, 2, 10, 11, 100, 101, 1 << 40} {
		h.Observe(v)
	}
	s := h.Snapshot()
	if want := []uint64{3, 2, 2, 2}; !slices.Equal(s.Counts, want) {
		t.Errorf("counts %v, want %v", s.Counts, want)
	}
	if want := int64(0 + 0 + 1 + 2 + 10 + 11 + 100 + 101 + 1<<40); s.Sum != want {
		t.Errorf("sum %d, want %d: below 0 counts as 0", s.Sum, want)
	}
}

func TestBoundsAscend(t *testing.T) {
	for _, h := range []*Histogram{Durations(), Sizes()} {
		if b := h.Snapshot().Bounds; !slices.IsSorted(b) || len(slices.Compact(slices.Clone(b))) != len(b) {
			t.Errorf("bounds %v do not ascend", b)
		}
	}
}

func TestObserveAtOnce(t *testing.T) {
	h := Sizes()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range int64(1000) {
				h.Observe(i)
				h.Snapshot()
			}
		})
	}
	wg.Wait()
	s, n := h.Snapshot(), uint64(0)
	for _, c := range s.Counts {
		n += c
	}
	if n != 4000 || s.Sum != 4*999*1000/2 {
		t.Errorf("%d observations with sum %d, want 4000 and %d", n, s.Sum, 4*999*1000/2)
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	h := Durations()
	if n := testing.AllocsPerRun(100, func() { h.Observe(12345) }); n != 0 {
		t.Errorf("%g allocations for an observation, want 0", n)
	}
}
