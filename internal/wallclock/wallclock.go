// Package wallclock decides whether the wall clock of a machine can be trusted. A wrong clock makes
// messages look old. A broker and a spool that removed them at once would lose messages, for
// example because a time server is wrong for a minute, or because a machine without a clock battery
// starts in 1970.
//
// [State] is the decision, without a clock: the time of the wall clock, the monotonic clock and the
// newest time in the data directory go in. [Clock] asks it with the clocks of the machine. A broker
// has one Clock, and each part that removes, rejects or hides messages by their age asks it.
package wallclock

import (
	"sync"
	"time"
)

const (
	// MaxStep is the largest change of the wall clock against the monotonic clock that is trusted.
	MaxStep = time.Minute

	// MaxGap is the largest difference between the newest time in a data directory and the wall
	// clock at the start that is trusted.
	MaxGap = time.Hour

	// Pause is how long the wall clock is not trusted after a step. Then its time is accepted: a
	// machine that was suspended, or was off for a week, is right.
	Pause = 10 * time.Minute
)

// A Reading is the time of both clocks at one moment.
type Reading struct {
	Wall      time.Time     // without a monotonic part
	Monotonic time.Duration // since a fixed moment in the life of the process
}

// ahead returns how far the wall clock is ahead of the time that is expected after an earlier
// reading.
func (r Reading) ahead(earlier Reading) time.Duration {
	return r.Wall.Sub(earlier.Wall) - (r.Monotonic - earlier.Monotonic)
}

// A State is the decision about the wall clock. Start returns the first one, and each reading of
// the clocks leads to the next.
type State struct {
	trusted Reading       // the last reading that was trusted
	since   Reading       // the first reading after the last step; steps are measured from here
	until   time.Duration // when the time of the wall clock is accepted, monotonic; 0 if it is trusted
	jump    time.Duration // how far the last step went
	start   bool          // the last step was before the start
}

// Start returns the state at the start of the process. newest is the newest time in the data
// directory. Zero means that there is none, so the clock is trusted.
func Start(now Reading, newest time.Time) State {
	s := State{trusted: now, since: now}
	if newest.IsZero() {
		return s
	}
	if gap := now.Wall.Sub(newest); gap.Abs() > MaxGap {
		s.trusted.Wall = newest
		s.until, s.jump, s.start = now.Monotonic+Pause, gap, true
	}
	return s
}

// Next returns the state at a later reading. The wall clock is not trusted for Pause after each
// step, also after the one that corrects it. changed is true if the reading shows a step, or if the
// clock is trusted again.
func (s State) Next(now Reading) (next State, changed bool) {
	if step := now.ahead(s.since); step.Abs() > MaxStep {
		s.since, s.until, s.jump, s.start = now, now.Monotonic+Pause, step, false
		return s, true
	}
	if s.until != 0 && now.Monotonic >= s.until {
		return State{trusted: now, since: now}, true
	}
	return s, false
}

// A Verdict is the state of the wall clock at one moment.
type Verdict struct {
	Now time.Time

	// Expected is the time without the steps since the clock was last trusted. While it is trusted,
	// Expected is Now.
	Expected time.Time

	// Distrusted means that no message may be removed, rejected or hidden by its age.
	Distrusted bool

	// Until is when the time of the wall clock is accepted, in that time. Zero if it is trusted.
	Until time.Time

	// Jump is how far the last step went, positive if the clock went ahead. AtStart means that the
	// step is the difference to the newest time in the data directory.
	Jump    time.Duration
	AtStart bool
}

// Ages returns the time to compute ages with. It is the earlier one of Now and Expected, so that no
// message looks older than it is.
func (v *Verdict) Ages() time.Time {
	if v.Expected.Before(v.Now) {
		return v.Expected
	}
	return v.Now
}

// Stamp returns the time to store a new message with. It is the later one of Now and Expected. So
// the stored times of a queue ascend while the clock has gone back for some minutes; retention
// searches the queue by these times.
func (v *Verdict) Stamp() time.Time {
	if v.Expected.After(v.Now) {
		return v.Expected
	}
	return v.Now
}

// Verdict returns the state of the clock at a reading.
func (s State) Verdict(now Reading) Verdict {
	v := Verdict{Now: now.Wall, Expected: now.Wall}
	if s.until == 0 {
		return v
	}
	v.Expected = s.trusted.Wall.Add(now.Monotonic - s.trusted.Monotonic)
	v.Distrusted, v.Until, v.Jump, v.AtStart = true, now.Wall.Add(s.until-now.Monotonic), s.jump, s.start
	return v
}

// A Clock is the wall clock of the machine with the decision about it. Several goroutines can share
// one. A nil Clock is always trusted: a broker in memory has none.
type Clock struct {
	begun   time.Time // with a monotonic part; Reading.Monotonic counts from it
	changed func()

	mu    sync.Mutex
	state State // guarded by mu
}

// New returns a Clock that is trusted. Look calls changed, if that is not nil, after a step and
// when the clock is trusted again. Several goroutines can call it at once; At returns the state to
// act on.
func New(changed func()) *Clock {
	now := time.Now()
	return &Clock{begun: now, changed: changed, state: Start(Reading{Wall: now.Round(0)}, time.Time{})}
}

// Compare compares the clock with the newest time in a data directory that was just opened, as
// Start does. It does not call changed.
func (c *Clock) Compare(newest time.Time) Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	at := c.reading(now)
	c.state = Start(at, newest)
	return c.withMonotonic(c.state.Verdict(at), now)
}

// Look reads the clocks and returns the verdict. The caller holds no lock that changed needs.
func (c *Clock) Look() Verdict {
	if c == nil {
		now := time.Now()
		return Verdict{Now: now, Expected: now}
	}
	v, changed := c.look()
	if changed && c.changed != nil {
		c.changed()
	}
	return v
}

func (c *Clock) look() (v Verdict, changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	at := c.reading(now)
	c.state, changed = c.state.Next(at)
	return c.withMonotonic(c.state.Verdict(at), now), changed
}

// At returns the verdict of the last Look for the time now, which time.Now returned. It calls
// nothing, so its callers can hold locks.
func (c *Clock) At(now time.Time) Verdict {
	if c == nil {
		return Verdict{Now: now, Expected: now}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.withMonotonic(c.state.Verdict(c.reading(now)), now)
}

// reading returns the reading of both clocks at now. The monotonic part of a time is lost if the
// wall clock is set to a year that time.Time cannot combine with it; then reading takes the present
// moment.
func (c *Clock) reading(now time.Time) Reading {
	wall := now.Round(0)
	monotonic := now.Sub(c.begun)
	if now == wall { // compares the monotonic parts, too
		monotonic = time.Since(c.begun)
	}
	return Reading{Wall: wall, Monotonic: monotonic}
}

// withMonotonic gives the times of a verdict the monotonic part of now, so that comparisons with
// other times of this process are independent of later steps.
func (c *Clock) withMonotonic(v Verdict, now time.Time) Verdict {
	if !v.Distrusted {
		return Verdict{Now: now, Expected: now}
	}
	v.Now, v.Until = now, now.Add(v.Until.Sub(v.Now))
	return v
}
