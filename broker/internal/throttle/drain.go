package throttle

import (
	"math"
	"sync"
	"time"
)

// drainWindow is the time constant of the moving averages: a measurement that is this old counts
// 1/e as much as one of now. For backlogs that drain in long steps, pace uses a longer one.
const drainWindow = 5 * time.Second

const (
	// leastMeasured is the least time that a rate is computed over. The first messages are treated
	// as if they had taken at least this time.
	leastMeasured = 100 * time.Millisecond

	// irregular bounds the pauses within a drain. A pause is too long if it exceeds irregular times
	// the longest recent pause, and also irregular times drainWindow.
	irregular = 4
)

// A pace measures how fast a backlog drains in steps. A step is a number of messages that consumers
// acknowledge at one moment. The duration of a step is the time until the next step.
//
// The rate is the sum of the recent steps divided by the sum of their durations. Old steps count
// less (exponential decay). So the rate of a steady drain is right between the steps too, however
// long they are, from the third step on. Steps in quick succession, for example a batch that is
// acknowledged message by message, count like one step. The last step has no duration yet and does
// not count, except if it is the first one: then its duration is the time since that step.
//
// Without a next step the rate changes as follows:
//   - It stays the same for the longest recent duration.
//   - Then it falls as if the next step came now. It does not fall if the backlog is empty.
//   - It is 0 after four times the longest recent duration, but not before 20 s have passed.
//
// A step after such a pause starts a new measurement. If the next pause follows soon and is of
// similar length, the drain is slow, and this pause counts as a duration. If the backlog was empty
// for longer than drainWindow, neither that pause nor the step before it counts.
//
// The zero value is ready for use.
type pace struct {
	messages, bytes float64 // decayed sums of the steps before the last one
	seconds         float64 // decayed sum of the durations of these steps

	// The last step. Its duration is not known yet.
	lastMessages, lastBytes float64
	at                      time.Time
	empty                   bool // the last step left the backlog empty

	longest float64   // longest recent duration of a step, in seconds
	before  float64   // the pause before start in seconds, if it was too long; otherwise 0
	start   time.Time // when this measurement began
}

// add records a step. left is false if the step has left the backlog empty.
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

// patience returns the longest duration of a step within a drain, in seconds.
func (p *pace) patience() float64 { return irregular * max(drainWindow.Seconds(), p.longest) }

// after returns the pace with the last step added to the sums. gap is the time since the last step,
// in seconds; counts is the part of gap that counts as its duration.
func (p pace) after(gap, counts float64) pace {
	p.longest = max(counts, p.longest-gap/irregular)
	f := math.Exp(-gap / max(drainWindow.Seconds(), 2*p.longest))
	p.messages, p.bytes = p.messages*f+p.lastMessages, p.bytes*f+p.lastBytes
	p.seconds = p.seconds*f + counts
	return p
}

// rate returns messages and bytes per second; 0 if nothing drains.
func (p pace) rate(now time.Time) (messages, bytes float64) {
	gap := now.Sub(p.at).Seconds()
	switch {
	case p.at.IsZero() || gap > p.patience():
		return 0, 0
	case p.seconds == 0: // there is only the first step: its duration is at least the time since
		s := max(gap, leastMeasured.Seconds())
		return (p.messages + p.lastMessages) / s, (p.bytes + p.lastBytes) / s
	case gap > p.longest && !p.empty:
		p = p.after(gap, gap)
	}
	s := max(p.seconds, leastMeasured.Seconds())
	return p.messages / s, p.bytes / s
}

// A Drain measures how fast a backlog drains, in messages and bytes per second. The rate is right
// at any moment of a steady drain, and falls to 0 soon after the drain has stopped; [pace] has the
// details. Goroutines may share a Drain. The zero value is ready for use; its rate is 0.
type Drain struct {
	mu   sync.Mutex
	pace pace // guarded by mu
}

// Add records that messages and bytes were drained. left is false if the backlog is empty now.
func (d *Drain) Add(messages, bytes int64, left bool, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pace.add(float64(messages), float64(bytes), left, now)
}

// Rate returns messages and bytes per second; 0 if nothing drains.
func (d *Drain) Rate(now time.Time) (messages, bytes float64) {
	d.mu.Lock()
	p := d.pace
	d.mu.Unlock()
	return p.rate(now)
}
