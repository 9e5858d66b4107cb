package broker

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// A Rate bounds how fast a topic takes messages. Zero fields do not bound.
type Rate struct {
	MessagesPerSecond float64 `json:"messages_per_second,omitempty"`
	BytesPerSecond    float64 `json:"bytes_per_second,omitempty"` // of bodies

	// Burst is how many messages may come at once after a pause. 0: as many
	// as in one second, at least 1. Of bytes, as many as in one second may
	// come at once, or one message if it has more.
	Burst int `json:"burst,omitempty"`
}

func (r Rate) validate(field string) error {
	var errs []error
	for _, x := range []struct {
		name  string
		value float64
	}{{"messages_per_second", r.MessagesPerSecond}, {"bytes_per_second", r.BytesPerSecond}} {
		if !(x.value >= 0) || math.IsInf(x.value, 0) {
			errs = append(errs, fmt.Errorf("%s.%s is %g: give a number of 0 or more; 0 is no limit", field, x.name, x.value))
		}
	}
	if r.Burst < 0 || r.Burst > 0 && r.MessagesPerSecond == 0 {
		errs = append(errs, fmt.Errorf("%s.burst is %d: it may not be negative, and needs messages_per_second", field, r.Burst))
	}
	return errors.Join(errs...)
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
		return min(max(time.Duration(math.Ceil(missing/rate*float64(time.Second))), minPushBack), maxPushBack)
	}
	return 0
}

// rated is a Rate in use. Its zero value is ready for use. The bucket of what is
// not limited is full, whatever passes.
type rated struct {
	messages, bytes bucket
	gates           [2]gate
	offered         flow
}

// take takes a message of size bytes from what the rate allows. The measure is
// valid if wait is above 0: the message comes too early by that.
func (r *rated) take(limit Rate, size int64, now time.Time) (m measure, wait time.Duration) {
	r.offered.add(1, size, now)
	if wait = r.wait(byMessages, limit, 1, now); wait == 0 {
		if wait = r.wait(byBytes, limit, size, now); wait > 0 {
			m = byBytes
		}
	}
	r.gates[byMessages].set(wait > 0 && m == byMessages, now)
	r.gates[byBytes].set(wait > 0 && m == byBytes, now)
	if wait == 0 {
		r.messages.tokens--
		r.bytes.tokens -= float64(size)
		r.fill(limit)
	}
	return m, wait
}

// fill fills the buckets of what is not limited.
func (r *rated) fill(limit Rate) {
	if limit.MessagesPerSecond == 0 {
		r.messages = bucket{}
	}
	if limit.BytesPerSecond == 0 {
		r.bytes = bucket{}
	}
}

// wait returns how long it takes until there is room for cost; 0 for none.
func (r *rated) wait(m measure, limit Rate, cost int64, now time.Time) time.Duration {
	switch {
	case m == byMessages && limit.MessagesPerSecond > 0:
		return r.messages.wait(float64(cost), limit.MessagesPerSecond, float64(Quota{limit.MessagesPerSecond, limit.Burst}.burst()), now)
	case m == byBytes && limit.BytesPerSecond > 0:
		return r.bytes.wait(float64(cost), limit.BytesPerSecond, limit.BytesPerSecond, now)
	}
	return 0
}

// describe returns one bound as a throttle; RetryAfter is above 0 while it
// refuses messages of any size.
func (r *rated) describe(m measure, topic string, limit Rate, now time.Time) Throttle {
	messages, bytes := r.offered.rate(now)
	th := Throttle{Limit: limitTopicRateMessages, Subject: topic, Unit: unitMessagesPerSecond, Value: int64(messages), Mark: int64(math.Ceil(limit.MessagesPerSecond))}
	if m == byBytes {
		th.Limit, th.Unit, th.Value, th.Mark = limitTopicRateBytes, unitBytesPerSecond, int64(bytes), int64(math.Ceil(limit.BytesPerSecond))
	}
	th.Resume, th.RetryAfter = th.Mark, Duration(r.wait(m, limit, 1, now))
	if r.gates[m].on {
		th.Since = r.gates[m].since
	}
	return th
}

// throttleRate returns the topic's rate as a throttle if the message comes too
// early, and takes it from the rate if not. by is nil if nothing is sent.
func (t *topic) throttleRate(by *sender, now time.Time) *Throttle {
	limit := t.config.Load().MaxRate
	if limit == (Rate{}) || by == nil {
		return nil
	}
	t.gatesMu.Lock()
	defer t.gatesMu.Unlock()
	m, wait := t.rate.take(limit, by.size, now)
	if wait == 0 {
		return nil
	}
	th := t.rate.describe(m, t.name, limit, now)
	th.RetryAfter = max(Duration(wait), th.RetryAfter)
	return &th
}
