package throttle

import (
	"testing"
	"time"
)

func TestPushBack(t *testing.T) {
	for _, c := range []struct {
		excess int64
		rate   float64
		want   time.Duration
	}{
		{100, 0, 0}, {100, -1, 0}, {100, 50, 2 * time.Second}, {1, 1e9, MinPushBack}, {1 << 60, 1e-9, MaxPushBack}, {0, 5, MinPushBack},
	} {
		if got := PushBack(c.excess, c.rate); got != c.want {
			t.Errorf("PushBack(%d, %g) = %v, want %v", c.excess, c.rate, got, c.want)
		}
	}
}
