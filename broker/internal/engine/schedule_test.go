package engine

import (
	"testing"
	"time"
)

func TestSchedule(t *testing.T) {
	t.Parallel()
	c := checkSchedule{Timeout: 6 * time.Second, Interval: 30 * time.Second, Max: 15}
	now := time.Unix(1000, 0)
	s := c.First(0, now)
	if want := now.Add(6 * time.Second); !s.Due.Equal(want) || s.Checks != 0 {
		t.Errorf("first: %+v, want %v", s, want)
	}
	if s := c.First(time.Hour, now); !s.Due.Equal(now.Add(time.Hour)) {
		t.Errorf("the message's own first check: %+v", s)
	}
	for name, x := range map[string]struct {
		checks int
		late   time.Duration
		max    int
		next   time.Duration // after now
		giveUp bool
	}{
		"in time":         {0, 0, 15, 30 * time.Second, false},
		"late":            {3, time.Second, 15, 29 * time.Second, false},
		"very late":       {3, time.Hour, 15, 30 * time.Second, false},
		"the last":        {14, 0, 15, 30 * time.Second, false},
		"after the last":  {15, 0, 15, 0, true},
		"lowered":         {9, 0, 5, 0, true},
		"without an end":  {1 << 20, 0, -1, 30 * time.Second, false},
		"only one":        {0, 0, 1, 30 * time.Second, false},
		"after the first": {1, 0, 1, 0, true},
	} {
		c.Max = x.max
		before := s
		before.Checks = x.checks
		now := before.Due.Add(x.late)
		after, giveUp := c.Next(before, now)
		if giveUp != x.giveUp || !giveUp && (!after.Due.Equal(now.Add(x.next)) || after.Checks != x.checks+1) {
			t.Errorf("%s: %+v, %t; want after %v, %t", name, after, giveUp, x.next, x.giveUp)
		}
	}
}
