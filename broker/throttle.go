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
}

func (g *gate) update(value, mark int64, now time.Time) bool {
	on := throttled(g.on, value, mark, resumeMark(mark))
	if on && !g.on {
		g.since = now
	}
	g.on = on
	return on
}

// gates are those of one backlog: by messages and by bytes.
type gates struct{ messages, bytes gate }

// check returns the throttle that holds, or nil. what is "topic" or "group".
func (g *gates) check(what, subject string, value, limit Limit, rate func() (messages, bytes float64), now time.Time) *Throttle {
	byMessages := g.messages.update(value.Messages, limit.Messages, now)
	byBytes := g.bytes.update(value.Bytes, limit.Bytes, now)
	if !byMessages && !byBytes {
		return nil
	}
	perMessage, perByte := rate()
	if byMessages {
		resume := resumeMark(limit.Messages)
		return &Throttle{
			Limit: what + " backlog messages", Subject: subject, Value: value.Messages, Mark: limit.Messages, Resume: resume,
			Since: g.messages.since, RetryAfter: pushBack(value.Messages-resume, perMessage),
		}
	}
	resume := resumeMark(limit.Bytes)
	return &Throttle{
		Limit: what + " backlog bytes", Subject: subject, Value: value.Bytes, Mark: limit.Bytes, Resume: resume,
		Since: g.bytes.since, RetryAfter: pushBack(value.Bytes-resume, perByte),
	}
}

// drainWindow is the time constant of the drain rate: what was drained that
// long ago counts 1/e of what is drained now.
const drainWindow = 5 * time.Second

// A drain measures how fast a backlog is consumed. Its zero value is ready for use.
type drain struct {
	mu              sync.Mutex
	messages, bytes float64   // guarded by mu: decayed sums
	at              time.Time // guarded by mu: of the sums
	start           time.Time // guarded by mu: since when the sums gather
}

func (d *drain) add(messages, bytes int64, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.decay(now)
	d.messages += float64(messages)
	d.bytes += float64(bytes)
}

func (d *drain) decay(now time.Time) {
	if d.start.IsZero() {
		d.start, d.at = now, now
	}
	f := math.Exp(-now.Sub(d.at).Seconds() / drainWindow.Seconds())
	d.messages, d.bytes, d.at = d.messages*f, d.bytes*f, now
	if d.messages < 0.5 { // a pause of many windows: measure anew
		d.messages, d.bytes, d.start = 0, 0, now
	}
}

// rate returns messages and bytes a second. Early on, the sums have not gathered
// for a whole window yet; the divisor corrects that.
func (d *drain) rate(now time.Time) (messages, bytes float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.decay(now)
	elapsed := max(now.Sub(d.start).Seconds(), 0.1)
	window := drainWindow.Seconds() * (1 - math.Exp(-elapsed/drainWindow.Seconds()))
	return d.messages / window, d.bytes / window
}
