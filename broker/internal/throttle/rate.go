package throttle

import (
	"math"
	"time"
)

// Burst returns how many messages may come at once after a pause, under a
// limit of so many a second: burst or, if that is 0, as many as in one second, at least 1.
func Burst(perSecond float64, burst int) int {
	if burst > 0 {
		return burst
	}
	return int(min(max(1, math.Ceil(perSecond)), math.MaxInt32))
}

// A bucket has tokens that come at a rate. Its zero value is full.
type bucket struct {
	tokens float64
	at     time.Time
}

// wait brings tokens up to date, and returns how long it takes until there are
// enough for cost; a cost above burst needs a full bucket.
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

// A RateLimit bounds a [Rate]. Zero fields do not.
type RateLimit struct {
	MessagesPerSecond float64
	BytesPerSecond    float64 // up to as many at once, or one message if it has more
	Burst             int     // of messages; see [Burst]
}

// of returns the limit of one measure; 0 for none.
func (l RateLimit) of(m Measure) float64 {
	return [...]float64{l.MessagesPerSecond, l.BytesPerSecond}[m]
}

// A Rate takes messages as fast as a limit allows, and measures how fast they
// come. The buckets of what is not limited are full, whatever passes.
type Rate struct {
	buckets [2]bucket // ByMessages and ByBytes
	gates   [2]gate   // of the last message
	offered Flow
}

// Take takes a message of size bytes from what the limit allows, and returns a
// wait of 0; or it returns by how much the message comes too early, and by which measure.
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

// Refused returns how the limit is that refused the last message, which comes
// too early by wait. RetryAfter is longer if then even smaller ones would be refused.
func (r *Rate) Refused(m Measure, wait time.Duration, limit RateLimit, now time.Time) State {
	s := r.state(m, limit, now)
	s.RetryAfter = max(wait, s.RetryAfter)
	return s
}

// Fill fills the buckets of what is not limited. It is to be called when the
// limit changes, so that one that is set anew begins with its whole burst.
func (r *Rate) Fill(limit RateLimit) {
	for m := range r.buckets {
		if limit.of(Measure(m)) == 0 {
			r.buckets[m] = bucket{}
		}
	}
}

// State returns how the limit of messages or of bytes is. On: it refuses
// messages of any size for RetryAfter.
func (r *Rate) State(m Measure, limit RateLimit, now time.Time) State {
	s := r.state(m, limit, now)
	if s.On = s.RetryAfter > 0; !s.On {
		s.Since = time.Time{} // the gate tells of the last message only
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

// wait returns how long it takes until there is room for cost; 0 for none.
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
