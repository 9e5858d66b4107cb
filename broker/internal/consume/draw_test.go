package consume

import (
	"math"
	"testing"
)

// Equal numbers give equal draws in every version of the broker, because due times from before a
// restart are derived from them.
func TestDrawFrom(t *testing.T) {
	for _, c := range []struct {
		got  Draw
		want Draw
	}{
		{drawFrom(1, 2, 3, 4, 5, 6), Draw{true, 6927598689757807.0 / (1 << 53)}},
		{drawFrom(7, 1, 0, 1000, 1<<31, 1), Draw{false, 1361872726598930.0 / (1 << 53)}},
	} {
		if c.got != c.want {
			t.Errorf("it is %+v, want %+v", c.got, c.want)
		}
	}
}

// Draws for things that differ a little differ, and together they are spread evenly.
func TestDrawsAreSpread(t *testing.T) {
	const n = 20000
	var sum float64
	negative := 0
	seen := map[float64]bool{}
	for i := range uint64(n) {
		d := drawFrom(1, 1, 0, i/4, 7, i%4)
		if d.Number < 0 || d.Number >= 1 || seen[d.Number] {
			t.Fatalf("draw %d is %+v; seen: %t", i, d, seen[d.Number])
		}
		seen[d.Number] = true
		sum += d.Number
		if d.Negative {
			negative++
		}
	}
	if mean := sum / n; math.Abs(mean-.5) > .02 {
		t.Errorf("the numbers' mean is %v", mean)
	}
	if share := float64(negative) / n; math.Abs(share-.5) > .02 {
		t.Errorf("%v of the draws are negative", share)
	}
}
