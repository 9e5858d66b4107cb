package bench

import (
	"math"
	"testing"
)

func rounds(values ...float64) []Round {
	var out []Round
	for _, v := range values {
		out = append(out, Round{Achieved: v})
	}
	return out
}

// Equal results show no difference, results apart show one, and noise as large as the difference
// hides it.
func TestCompare(t *testing.T) {
	achieved := func(r Round) float64 { return r.Achieved }
	for _, c := range []struct {
		name          string
		before, after []Round
		ratio         float64
		different     bool
	}{
		{"equal", rounds(100, 101, 99, 100, 102), rounds(100, 101, 99, 100, 102), 1, false},
		{"a tenth more", rounds(100, 101, 99, 100, 102), rounds(110, 111, 109, 110, 112), 1.1, true},
		{"noise", rounds(100, 140, 70, 120, 90), rounds(110, 70, 150, 95, 130), 1.1, false},
		{"less", rounds(100, 100, 100), rounds(50, 50, 50), 0.5, true},
	} {
		got := Compare(c.before, c.after, achieved)
		if math.Abs(got.Ratio-c.ratio) > 1e-9 || got.Different() != c.different || got.Low > got.Ratio || got.High < got.Ratio {
			t.Errorf("%s: %+v, want ratio %v, different %v", c.name, got, c.ratio, c.different)
		}
	}
}
