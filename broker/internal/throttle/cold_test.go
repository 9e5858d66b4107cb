package throttle

import "testing"

func TestCold(t *testing.T) {
	for _, c := range []struct {
		before                        bool
		rate, limit, behind, distance int64
		want                          bool
	}{
		{false, 1000, 1000, 101, 100, true},
		{false, 999, 1000, 101, 100, false},  // slow enough
		{false, 1000, 1000, 100, 100, false}, // near the end
		{true, 801, 1000, 81, 100, true},
		{true, 800, 1000, 81, 100, false},
		{true, 5000, 1000, 80, 100, false},
		{false, 1 << 60, 0, 1 << 60, 100, false}, // no limit
		{true, 1 << 60, 0, 1 << 60, 100, false},
	} {
		if got := cold(c.before, ColdReads{perSecond: c.rate, behind: c.behind}, ColdLimit{c.limit, c.distance}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
