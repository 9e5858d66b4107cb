package throttle

import "time"

// ResumePercent is the percentage of a limit at which its throttle ends.
const ResumePercent = 80

// resumeMark returns the value at which a throttle at mark ends: ResumePercent of mark, rounded
// down. The result is below mark if mark is above 0.
func resumeMark(mark int64) int64 {
	return mark/100*ResumePercent + mark%100*ResumePercent/100
}

// refuses reports whether a limit rejects sends. It does once value reaches mark, and then until
// value has fallen to resume, so that the state does not flap. A mark of 0 means no limit. before
// is the last result.
func refuses(before bool, value, mark, resume int64) bool {
	if mark <= 0 {
		return false
	}
	if before {
		return value > resume
	}
	return value >= mark
}

// A State is the state of a limit at one moment.
type State struct {
	On     bool  // the limit rejects sends
	Value  int64 // the current value
	Mark   int64 // the limit itself
	Resume int64 // sends are accepted again when the value is at or below; of free disk, at or above

	Since      time.Time     // when On was set; zero if On is false
	RetryAfter time.Duration // estimated time until sends are accepted again; 0 for no estimate
}

// A gate keeps whether one limit rejects sends. The zero value does not reject.
type gate struct {
	on    bool
	since time.Time

	// peak is the highest value of this throttle, and peakAt when update saw it last.
	peak   int64
	peakAt time.Time

	// resuming is set when the gate turns off, until the value has fallen to ResumePercent of the
	// value at which the throttle ended. Meanwhile the clients share the room.
	resuming bool
}

func (g *gate) update(value, mark int64, now time.Time) bool {
	if !g.on && !g.resuming && (mark <= 0 || value < mark) {
		return false // no change; the usual case
	}
	resume := resumeMark(mark)
	before := g.on
	if g.set(refuses(g.on, value, mark, resume), now); g.on && (!before || value >= g.peak) {
		g.peak, g.peakAt = value, now
	}
	if mark <= 0 || value <= resumeMark(resume) {
		g.resuming = false
	}
	return g.on
}

func (g *gate) set(on bool, now time.Time) {
	if on != g.on {
		g.since, g.resuming = now, !on
	}
	g.on = on
}

// state completes s, the state of the gate's limit: it sets On and Since, and clears RetryAfter if
// the gate is off.
func (g *gate) state(s State) State {
	if s.On = g.on; g.on {
		s.Since = g.since
	} else {
		s.RetryAfter = 0
	}
	return s
}

// A Range is an estimate of a time. The zero value means that there is no estimate.
type Range struct{ Least, Most time.Duration }

const (
	// leastFall is the least time since the peak from which a fall is an estimate.
	leastFall = 10 * time.Second

	// steady bounds Most of a Range, as a multiple of Least. A drain whose rate now and rate since
	// the peak differ more is not steady.
	steady = 4
)

// expect estimates how long the gate stays on, from two rates: drain is the time at the rate of the
// last seconds, and the fall since the peak is the rate of the whole throttle. There is no estimate
// in the first 10 s, and while one rate is more than four times the other.
func (g *gate) expect(value, resume int64, drain time.Duration, now time.Time) (r Range) {
	past := now.Sub(g.peakAt)
	if !g.on || drain <= 0 || past < leastFall || value >= g.peak {
		return r
	}
	whole := drainTime(value-resume, float64(g.peak-value)/past.Seconds())
	if r = (Range{min(drain, whole), max(drain, whole)}); r.Most > steady*r.Least {
		return Range{}
	}
	return r
}
