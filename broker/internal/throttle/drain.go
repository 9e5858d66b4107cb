package throttle

import (
	"math"
	"sync"
	"time"
)

// drainWindow is how long ago what was measured counts 1/e of what is measured
// now; longer where less happens, see pace.
const drainWindow = 5 * time.Second

const (
	// leastMeasured is the least time that a rate is told of: what comes at
	// once at first is taken for what comes in that time.
	leastMeasured = 100 * time.Millisecond

	// pauses of that many times the longest one of late, or of drainWindow if
	// that is more, are no part of a drain.
	irregular = 4
)

// A pace measures how fast a backlog drains that drains in steps. The rate is what the steps of
// late were, divided by the time that each took until the next one. So it is right at any moment of
// a steady drain, however long its steps are, once it has seen three of them; of steps that are a
// moment apart, as those of a batch that is acknowledged one by one, all count as one. The first
// step counts for the time since then.
//
// It is what was measured until the next step is overdue, then it falls as if
// the step came now, and when that takes four times as long as the longest step of late, and
// at least 20 s, it is 0: nothing drains. Measuring begins anew then, unless the next
// pause is alike. A pause above drainWindow in which nothing was there to drain does not count.
//
// Its zero value is ready for use.
type pace struct {
	messages, bytes float64 // of the steps, decayed
	seconds         float64 // that these took, decayed likewise

	// The last step: how long it takes is not known.
	lastMessages, lastBytes float64
	at                      time.Time
	empty                   bool // nothing was left

	longest float64   // of the seconds of late
	before  float64   // the pause before start, if that was too long to be a step
	start   time.Time // when measuring began
}

// add notes a step; left tells whether more is there to drain.
func (p *pace) add(messages, bytes float64, left bool, now time.Time) {
	gap := now.Sub(p.at).Seconds()
	switch {
	case p.at.IsZero():
		p.start = now
	case gap <= 0:
		now = p.at
		p.messages, p.bytes = p.messages+p.lastMessages, p.bytes+p.lastBytes
	case p.empty && gap > drainWindow.Seconds():
		p.lastMessages, p.lastBytes = 0, 0
		*p = p.after(gap, 0)
	case gap <= p.patience() || gap <= irregular*p.before && p.at.Sub(p.start) <= drainWindow:
		*p = p.after(gap, gap)
	default:
		*p = pace{before: gap, start: now}
	}
	p.lastMessages, p.lastBytes, p.at, p.empty = messages, bytes, now, !left
}

// patience is how many seconds a step may take.
func (p *pace) patience() float64 { return irregular * max(drainWindow.Seconds(), p.longest) }

// after returns the pace once the last step has taken that long, of which a
// part counts.
func (p pace) after(gap, counts float64) pace {
	p.longest = max(counts, p.longest-gap/irregular)
	f := math.Exp(-gap / max(drainWindow.Seconds(), 2*p.longest))
	p.messages, p.bytes = p.messages*f+p.lastMessages, p.bytes*f+p.lastBytes
	p.seconds = p.seconds*f + counts
	return p
}

// rate returns messages and bytes a second; 0 if nothing drains.
func (p pace) rate(now time.Time) (messages, bytes float64) {
	gap := now.Sub(p.at).Seconds()
	switch {
	case p.at.IsZero() || gap > p.patience():
		return 0, 0
	case p.seconds == 0: // the first step: it took this time at least
		s := max(gap, leastMeasured.Seconds())
		return (p.messages + p.lastMessages) / s, (p.bytes + p.lastBytes) / s
	case gap > p.longest && !p.empty:
		p = p.after(gap, gap)
	}
	s := max(p.seconds, leastMeasured.Seconds())
	return p.messages / s, p.bytes / s
}

// A Drain measures how fast a backlog drains, in messages and bytes a second, by
// what was said for [pace]: right at any moment of a steady drain, and 0 soon
// after it stopped. Goroutines may share it. Its zero value has measured nothing.
type Drain struct {
	mu   sync.Mutex
	pace pace // guarded by mu
}

// Add notes that so much was drained; left tells whether more is there to drain.
func (d *Drain) Add(messages, bytes int64, left bool, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pace.add(float64(messages), float64(bytes), left, now)
}

// Rate returns messages and bytes a second; 0 if nothing drains.
func (d *Drain) Rate(now time.Time) (messages, bytes float64) {
	d.mu.Lock()
	p := d.pace
	d.mu.Unlock()
	return p.rate(now)
}
