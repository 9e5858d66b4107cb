package wallclock

import (
	"testing"
	"testing/synctest"
	"time"
)

// day is the moment at which the wall clock of the tables starts.
var day = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// The wall clock is trusted, or distrusted until a time, by its steps and the newest time in the
// directory.
func TestStates(t *testing.T) {
	t.Parallel()
	const never = -1
	type reading struct {
		monotonic  time.Duration
		wall       time.Duration // after day
		distrusted time.Duration // monotonic end of the distrust; never if trusted
		expected   time.Duration // after day, while distrusted
	}
	for name, c := range map[string]struct {
		newest time.Duration // after day; 0 for none
		at     []reading
	}{
		"a clock that runs": {0, []reading{{0, 0, never, 0}, {time.Hour, time.Hour, never, 0}, {99 * time.Hour, 99 * time.Hour, never, 0}}},
		"steps of a minute": {0, []reading{{time.Hour, time.Hour + time.Minute, never, 0}, {2 * time.Hour, 2*time.Hour - time.Minute, never, 0}}},
		"four days ahead for a minute": {0, []reading{
			{time.Hour, 97 * time.Hour, 70 * time.Minute, time.Hour},
			{61 * time.Minute, 61 * time.Minute, 71 * time.Minute, 61 * time.Minute}, // the correction is a step
			{71*time.Minute - 1, 71*time.Minute - 1, 71 * time.Minute, 71*time.Minute - 1},
			{71 * time.Minute, 71 * time.Minute, never, 0},
		}},
		"a machine that was suspended": {0, []reading{
			{time.Minute, 8 * time.Hour, 11 * time.Minute, time.Minute},
			{11 * time.Minute, 8*time.Hour + 10*time.Minute, never, 0},
			{20 * time.Minute, 8*time.Hour + 19*time.Minute, never, 0},
		}},
		"an hour behind":                   {0, []reading{{time.Minute, -time.Hour, 11 * time.Minute, time.Minute}, {12 * time.Minute, -49 * time.Minute, never, 0}}},
		"a second step at the end":         {0, []reading{{0, time.Hour, 10 * time.Minute, 0}, {10 * time.Minute, 3 * time.Hour, 20 * time.Minute, 10 * time.Minute}}},
		"a look after a long time":         {0, []reading{{0, 0, never, 0}, {100 * time.Hour, 200 * time.Hour, 100*time.Hour + Pause, 100 * time.Hour}}},
		"small steps that add up":          {0, []reading{{1, 40 * time.Second, never, 0}, {2, 80 * time.Second, 2 + Pause, 2}}},
		"a start within an hour":           {-time.Hour, []reading{{0, 0, never, 0}}},
		"a start an hour before":           {time.Hour, []reading{{0, 0, never, 0}}},
		"a start after a longer stop":      {-time.Hour - 1, []reading{{0, 0, Pause, -time.Hour - 1}, {Pause, Pause, never, 0}}},
		"a start in 1970":                  {56 * 365 * 24 * time.Hour, []reading{{0, 0, Pause, 56 * 365 * 24 * time.Hour}}},
		"a start in 1970, then the step":   {56 * 365 * 24 * time.Hour, []reading{{time.Minute, 56 * 365 * 24 * time.Hour, 11 * time.Minute, 56*365*24*time.Hour + time.Minute}}},
		"a directory without any messages": {0, []reading{{0, 0, never, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var newest time.Time
			if c.newest != 0 {
				newest = day.Add(c.newest)
			}
			s := Start(Reading{Wall: day}, newest)
			for _, r := range c.at {
				now := Reading{Wall: day.Add(r.wall), Monotonic: r.monotonic}
				s, _ = s.Next(now)
				got, want := s.Verdict(now), Verdict{Now: now.Wall, Expected: now.Wall}
				if r.distrusted != never {
					want.Distrusted, want.Expected, want.Until = true, day.Add(r.expected), now.Wall.Add(r.distrusted-r.monotonic)
				}
				got.Jump, got.AtStart = 0, false
				if got != want {
					t.Errorf("after %v, the wall clock at %v:\n got %+v\nwant %+v", r.monotonic, r.wall, got, want)
				}
			}
		})
	}
}

// Messages do not look older than they are, and stored times ascend, in both directions of a step.
func TestAgesAndStamps(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{-100 * time.Hour, 100 * time.Hour} {
		s := Start(Reading{Wall: day}, time.Time{})
		now := Reading{Wall: day.Add(step + time.Second), Monotonic: time.Second}
		s, changed := s.Next(now)
		v := s.Verdict(now)
		earlier, later := day.Add(time.Second), day.Add(step+time.Second)
		if step < 0 {
			earlier, later = later, earlier
		}
		if !changed || !v.Ages().Equal(earlier) || !v.Stamp().Equal(later) || v.Jump != step || v.AtStart {
			t.Errorf("after a step of %v: ages by %v, want %v; stored at %v, want %v; %+v", step, v.Ages(), earlier, v.Stamp(), later, v)
		}
	}
}

// A Clock reports each change once, and a trusted one returns its argument.
func TestClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		c := New(func() { changes++ })
		if v := c.Look(); v.Distrusted {
			t.Errorf("a new clock: %+v", v)
		}
		if v := c.Compare(time.Now().Add(-2 * time.Hour)); !v.Distrusted {
			t.Errorf("after the comparison: %+v", v)
		}
		v := c.Look()
		if !v.Distrusted || !v.AtStart || v.Jump != 2*time.Hour || v.Until.Sub(v.Now) != Pause || changes != 0 {
			t.Errorf("at the start: %+v, %d changes", v, changes)
		}
		time.Sleep(Pause)
		if v := c.At(time.Now()); !v.Distrusted {
			t.Error("At accepted the time, which only Look does")
		}
		for range 2 {
			now := time.Now()
			if v := c.Look(); v.Distrusted || v.Now != now || v.Ages() != now || v.Stamp() != now || changes != 1 {
				t.Errorf("after the pause: %+v, %d changes", v, changes)
			}
		}
		if v := (*Clock)(nil).Look(); v.Distrusted || v.Now != time.Now() || v.Ages() != v.Now {
			t.Errorf("without a clock: %+v", v)
		}
	})
}
