package throttle

import (
	"math"
	"time"
)

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
