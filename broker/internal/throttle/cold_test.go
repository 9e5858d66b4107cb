package throttle

import (
	"testing"
	"time"
)

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

// TestColdReads checks that all groups that are far behind count, and that the estimate is that of
// the slowest group.
func TestColdReads(t *testing.T) {
	limit := ColdLimit{PerSecond: 100, Distance: 1000}
	if limit.Far(800) || !limit.Far(801) {
		t.Error("near the end is where a throttle ends: at 800 of 1000")
	}
	var reads ColdReads
	reads.Add(limit, 5000, 40)
	reads.Add(limit, 1800, 70)
	reads.Add(limit, 900, 0)
	var c Cold
	now := time.Now()
	want := State{On: true, Value: 110, Mark: 100, Resume: 80, Since: now, RetryAfter: 105 * time.Second}
	if s := c.Update(limit, reads, now); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	reads = ColdReads{}
	reads.Add(limit, 4900, 80)
	want = State{Value: 80, Mark: 100, Resume: 80}
	if s := c.Update(limit, reads, now.Add(time.Second)); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}
