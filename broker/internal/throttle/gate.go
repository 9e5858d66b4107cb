package throttle

import "time"

// ResumePercent of a limit is where its throttle ends.
const ResumePercent = 80

// resumeMark returns where a throttle at mark ends: ResumePercent of it, rounded
// down, and always below it.
func resumeMark(mark int64) int64 {
	return mark/100*ResumePercent + mark%100*ResumePercent/100
}

// refuses decides whether sends are refused: from the mark on, and then
// until the value is down to resume, so that it does not flap. Mark 0 is no limit.
func refuses(before bool, value, mark, resume int64) bool {
	if mark <= 0 {
		return false
	}
	if before {
		return value > resume
	}
	return value >= mark
}

// A State is how a limit is at one moment.
type State struct {
	On     bool  // sends are refused
	Value  int64 // now
	Mark   int64 // the limit itself
	Resume int64 // sends are accepted again when the value is at or below; of free disk, at or above

	Since      time.Time     // when it came on; zero if it is not
	RetryAfter time.Duration // estimated time until sends are accepted again; 0 for no estimate
}

// A gate keeps whether one limit refuses sends. Its zero value does not.
type gate struct {
	on    bool
	since time.Time

	// resuming: it was on, and the value has not come down to ResumePercent of
	// where it ended yet. Meanwhile senders share what room there is.
	resuming bool
}

func (g *gate) update(value, mark int64, now time.Time) bool {
	if !g.on && !g.resuming && (mark <= 0 || value < mark) {
		return false // as before, and as nearly always
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

// state completes that of the gate's limit.
func (g *gate) state(s State) State {
	if s.On = g.on; g.on {
		s.Since = g.since
	} else {
		s.RetryAfter = 0
	}
	return s
}
