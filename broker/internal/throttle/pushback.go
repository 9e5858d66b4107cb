package throttle

import (
	"math"
	"sync"
	"time"
)

// The bounds of the wait that the broker announces to producers.
const (
	minPushBack = time.Millisecond
	maxPushBack = 2 * time.Minute // MAX_BACKOFF of "RocketMQ: sending retry and throttling"
)

// Bound returns d, but at least 1 ms and at most 2 min: the bounds of the wait that the broker
// announces to producers.
func Bound(d time.Duration) time.Duration { return min(max(d, minPushBack), maxPushBack) }

// maxDrainTime bounds estimates: it is as good as never.
const maxDrainTime = 10_000 * time.Hour

// drainTime estimates how long it takes to drain excess at a rate per second, at least 1 ms. It
// returns 0 if nothing drains, so that there is no estimate.
func drainTime(excess int64, rate float64) time.Duration {
	if excess <= 0 {
		return minPushBack
	}
	if !(rate > 0) {
		return 0
	}
	s := float64(excess) / rate
	if s >= maxDrainTime.Seconds() {
		return maxDrainTime
	}
	return max(minPushBack, time.Duration(s*float64(time.Second)))
}

// pushBack is drainTime within the bounds of the wait of producers.
func pushBack(excess int64, rate float64) time.Duration {
	return min(drainTime(excess, rate), maxPushBack)
}

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

// A Flow measures messages and bytes per second, as a moving average with a time constant of 5 s.
// Goroutines may share a Flow. The zero value is ready for use; its rate is 0.
type Flow struct {
	mu              sync.Mutex
	messages, bytes float64   // guarded by mu: decayed sums
	at              time.Time // guarded by mu: when the sums were last decayed
	start           time.Time // guarded by mu: when this measurement began
}

// Add counts messages and bytes at now.
func (f *Flow) Add(messages, bytes int64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decay(now)
	f.messages += float64(messages)
	f.bytes += float64(bytes)
}

func (f *Flow) decay(now time.Time) {
	if f.start.IsZero() {
		f.start, f.at = now, now
	}
	k := math.Exp(-now.Sub(f.at).Seconds() / drainWindow.Seconds())
	f.messages, f.bytes, f.at = f.messages*k, f.bytes*k, now
	if f.messages < 0.5 { // a pause of many windows: measure anew
		f.messages, f.bytes, f.start = 0, 0, now
	}
}

// Rate returns messages and bytes per second. A measurement that began less than a second ago is
// treated as one second long. Soon after the beginning the sums do not cover a whole window yet;
// the divisor corrects the rate for that.
func (f *Flow) Rate(now time.Time) (messages, bytes float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decay(now)
	elapsed := max(now.Sub(f.start).Seconds(), 1)
	window := drainWindow.Seconds() * (1 - math.Exp(-elapsed/drainWindow.Seconds()))
	return f.messages / window, f.bytes / window
}

// Burst returns how many messages may arrive at once after a pause, under a limit of perSecond
// messages. This is burst or, if burst is 0, the messages of one second, and at least 1.
func Burst(perSecond float64, burst int) int {
	if burst > 0 {
		return burst
	}
	return int(min(max(1, math.Ceil(perSecond)), math.MaxInt32))
}

// A bucket is a token bucket. The zero value is full.
type bucket struct {
	tokens float64
	at     time.Time
}

// wait adds the tokens since the last call, and returns how long it takes until the bucket has
// enough for cost. For a cost above burst a full bucket is enough.
func (b *bucket) wait(cost, rate, burst float64, now time.Time) time.Duration {
	if b.at.IsZero() {
		b.tokens = burst
	}
	b.tokens = min(burst, b.tokens+rate*max(0, now.Sub(b.at).Seconds()))
	b.at = now
	if missing := min(cost, burst) - b.tokens; missing > 1e-9 {
		return Bound(time.Duration(math.Ceil(missing / rate * float64(time.Second))))
	}
	return 0
}

// A RateLimit bounds a [Rate]. A zero MessagesPerSecond or BytesPerSecond means no limit.
type RateLimit struct {
	MessagesPerSecond float64
	BytesPerSecond    float64 // as many may arrive at once, or one larger message
	Burst             int     // in messages; see [Burst] for zero
}

// of returns the limit of one measure; 0 means no limit.
func (l RateLimit) of(m Measure) float64 {
	return [...]float64{l.MessagesPerSecond, l.BytesPerSecond}[m]
}

// A Rate applies a rate limit to messages, and measures the rate at which messages arrive. The
// bucket of a measure without a limit is always full. The zero value is ready for use.
type Rate struct {
	buckets [2]bucket // ByMessages and ByBytes
	gates   [2]gate   // whether the limit rejected the last message
	offered Flow
}

// Take takes the tokens for a message of size bytes, and returns a wait of 0. If there are too few
// tokens, it takes none, and returns the time until there are enough and the measure that lacks
// them. Rejected messages count for the measured rate too.
func (r *Rate) Take(limit RateLimit, size int64, now time.Time) (m Measure, wait time.Duration) {
	r.offered.Add(1, size, now)
	if wait = r.wait(ByMessages, limit, 1, now); wait == 0 {
		if wait = r.wait(ByBytes, limit, size, now); wait > 0 {
			m = ByBytes
		}
	}
	r.gates[ByMessages].set(wait > 0 && m == ByMessages, now)
	r.gates[ByBytes].set(wait > 0 && m == ByBytes, now)
	if wait == 0 {
		r.buckets[ByMessages].tokens--
		r.buckets[ByBytes].tokens -= float64(size)
		r.Fill(limit)
	}
	return m, wait
}

// Refused returns the state of the limit that has rejected the last message. m and wait are the
// results of Take. RetryAfter is wait, or longer if the limit rejects messages of any size longer.
func (r *Rate) Refused(m Measure, wait time.Duration, limit RateLimit, now time.Time) State {
	s := r.state(m, limit, now)
	s.RetryAfter = max(wait, s.RetryAfter)
	return s
}

// Fill fills the buckets of the measures without a limit. Call it when the limit changes, so that a
// limit that is set again starts with its whole burst.
func (r *Rate) Fill(limit RateLimit) {
	for m := range r.buckets {
		if limit.of(Measure(m)) == 0 {
			r.buckets[m] = bucket{}
		}
	}
}

// State returns the state of the limit of messages or of bytes. On is set if the limit rejects
// messages of any size; it does so for RetryAfter.
func (r *Rate) State(m Measure, limit RateLimit, now time.Time) State {
	s := r.state(m, limit, now)
	if s.On = s.RetryAfter > 0; !s.On {
		s.Since = time.Time{} // the gate has the outcome of the last message only
	}
	return s
}

func (r *Rate) state(m Measure, limit RateLimit, now time.Time) State {
	messages, bytes := r.offered.Rate(now)
	value, mark := [...]float64{messages, bytes}[m], int64(math.Ceil(limit.of(m)))
	s := r.gates[m].state(State{Value: int64(value), Mark: mark, Resume: mark})
	s.RetryAfter = r.wait(m, limit, 1, now)
	return s
}

// wait returns how long it takes until the bucket of a measure has enough tokens for cost; 0 if it
// has enough now, or if there is no limit.
func (r *Rate) wait(m Measure, limit RateLimit, cost int64, now time.Time) time.Duration {
	rate := limit.of(m)
	if rate <= 0 {
		return 0
	}
	burst := rate
	if m == ByMessages {
		burst = float64(Burst(rate, limit.Burst))
	}
	return r.buckets[m].wait(float64(cost), rate, burst, now)
}
