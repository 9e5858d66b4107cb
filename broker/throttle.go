package broker

import (
	"math"
	"sync"
	"time"
)

// throttled decides whether sends are refused: from the mark on, and then
// until the value is down to resume, so that it does not flap.
func throttled(before bool, value, mark, resume int64) bool {
	if mark <= 0 {
		return false
	}
	if before {
		return value > resume
	}
	return value >= mark
}

// resumeMark returns where a throttle at mark ends: ResumePercent of it,
// rounded down, and always below it.
func resumeMark(mark int64) int64 {
	return mark/100*ResumePercent + mark%100*ResumePercent/100
}

// Bounds of the push-back that is told to producers.
const (
	minPushBack = time.Millisecond
	maxPushBack = 2 * time.Minute // MAX_BACKOFF of seed 004
)

// pushBack estimates how long it takes to drain excess at a rate per second.
// 0: nothing drains, so nothing can be said.
func pushBack(excess int64, rate float64) time.Duration {
	if excess <= 0 {
		return minPushBack
	}
	if !(rate > 0) {
		return 0
	}
	s := float64(excess) / rate
	if s >= maxPushBack.Seconds() {
		return maxPushBack
	}
	return max(minPushBack, time.Duration(s*float64(time.Second)))
}

// A gate keeps whether one limit refuses sends.
type gate struct {
	on    bool
	since time.Time

	// resuming: it was on, and the value has not come down to ResumePercent of
	// where it ended yet. Meanwhile senders share what room there is.
	resuming bool
}

func (g *gate) update(value, mark int64, now time.Time) bool {
	resume := resumeMark(mark)
	g.set(throttled(g.on, value, mark, resume), now)
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

// A measure is how a backlog is measured.
type measure int

const (
	byMessages measure = iota
	byBytes
	byAge // of the oldest message, in milliseconds
	measures
)

func (m measure) String() string { return [...]string{"messages", "bytes", "age"}[m] }

func (m measure) unit() string { return [...]string{unitMessages, unitBytes, unitMilliseconds}[m] }

// An amount is a backlog, or a limit of one, in each measure.
type amount [measures]int64

func (l Limit) amount() amount {
	return amount{l.Messages, l.Bytes, time.Duration(l.Age).Milliseconds()}
}

// gates are those of one backlog.
type gates struct {
	of   [measures]gate
	fair fairness
}

// check returns the throttle that holds, or nil. what is "topic" or "group";
// wait estimates how long it takes until a measure is down to resume.
func (g *gates) check(what, subject string, value, marks amount, wait func(m measure, resume int64) time.Duration, now time.Time) *Throttle {
	holds := measures
	for m := range g.of {
		if g.of[m].update(value[m], marks[m], now) && holds == measures {
			holds = measure(m)
		}
	}
	if holds == measures {
		return nil
	}
	th := g.describe(holds, what, subject, value, marks)
	th.RetryAfter = Duration(wait(holds, th.Resume))
	return &th
}

func (g *gates) describe(m measure, what, subject string, value, marks amount) Throttle {
	th := Throttle{
		Limit: what + " backlog " + m.String(), Subject: subject, Unit: m.unit(), Value: value[m], Mark: marks[m], Resume: resumeMark(marks[m]),
	}
	if g.of[m].on {
		th.Since = g.of[m].since
	}
	return th
}

// resuming returns the measure whose gate opened a while ago, if any.
func (g *gates) resuming() (measure, bool) {
	for m := range g.of {
		if g.of[m].resuming {
			return measure(m), true
		}
	}
	return 0, false
}

// A flow measures how much passes a second, in the last drainWindow or so. Its zero value is ready for use.
type flow struct {
	mu              sync.Mutex
	messages, bytes float64   // guarded by mu: decayed sums
	at              time.Time // guarded by mu: of the sums
	start           time.Time // guarded by mu: since when the sums gather
}

func (f *flow) add(messages, bytes int64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decay(now)
	f.messages += float64(messages)
	f.bytes += float64(bytes)
}

func (f *flow) decay(now time.Time) {
	if f.start.IsZero() {
		f.start, f.at = now, now
	}
	k := math.Exp(-now.Sub(f.at).Seconds() / drainWindow.Seconds())
	f.messages, f.bytes, f.at = f.messages*k, f.bytes*k, now
	if f.messages < 0.5 { // a pause of many windows: measure anew
		f.messages, f.bytes, f.start = 0, 0, now
	}
}

// rate returns messages and bytes a second. What passed in less than a second
// is taken for what passes in one. Early on, the sums have not gathered
// for a whole window yet; the divisor corrects that.
func (f *flow) rate(now time.Time) (messages, bytes float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decay(now)
	elapsed := max(now.Sub(f.start).Seconds(), 1)
	window := drainWindow.Seconds() * (1 - math.Exp(-elapsed/drainWindow.Seconds()))
	return f.messages / window, f.bytes / window
}
