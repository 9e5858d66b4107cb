package throttle

import (
	"math"
	"testing"
	"time"
)

func TestPushBack(t *testing.T) {
	for _, c := range []struct {
		excess int64
		rate   float64
		want   time.Duration
	}{
		{100, 0, 0}, {100, -1, 0}, {100, 50, 2 * time.Second}, {1, 1e9, minPushBack}, {1 << 60, 1e-9, maxPushBack}, {0, 5, minPushBack},
	} {
		if got := pushBack(c.excess, c.rate); got != c.want {
			t.Errorf("pushBack(%d, %g) = %v, want %v", c.excess, c.rate, got, c.want)
		}
	}
}

// For any measured values, the estimate is 0 or within the bounds. It is never shorter for a larger
// excess or for a slower drain.
func FuzzPushBack(f *testing.F) {
	f.Add(int64(100), 50.0)
	f.Add(int64(math.MaxInt64), math.SmallestNonzeroFloat64)
	f.Add(int64(-1), math.NaN())
	f.Add(int64(1), math.Inf(1))
	f.Fuzz(func(t *testing.T, excess int64, rate float64) {
		d := pushBack(excess, rate)
		if d != 0 && d != Bound(d) || d == 0 && rate > 0 {
			t.Fatalf("pushBack(%d, %g) = %v", excess, rate, d)
		}
		if excess > 0 && rate > 0 && (pushBack(excess/2, rate) > d || pushBack(excess, rate/2) < d && rate/2 > 0) {
			t.Fatalf("pushBack(%d, %g) = %v; of half as much %v, half as fast %v", excess, rate, d, pushBack(excess/2, rate), pushBack(excess, rate/2))
		}
	})
}
