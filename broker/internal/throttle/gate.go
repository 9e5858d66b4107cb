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

	// resuming is set when the gate turns off, until the value has fallen to ResumePercent of the
	// value at which the throttle ended. Meanwhile the clients share the room.
	resuming bool
}

func (g *gate) update(value, mark int64, now time.Time) bool {
	if !g.on && !g.resuming && (mark <= 0 || value < mark) {
		return false // no change; the usual case
	}
	resume := resumeMark(mark)
	g.set(refuses(g.on, value, mark, resume), now)
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
