package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// throttleRate returns the topic's rate as a throttle if the message comes too
// early, and takes it from the rate if not. by is nil if nothing is sent.
func throttleRate(t *topic.Topic, by *sender, now time.Time) *Throttle {
	limit := t.Settings().MaxRate
	if limit == (Rate{}) || by == nil {
		return nil
	}
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	m, wait := t.Throttling.Rate.Take(throttle.RateLimit(limit), by.size, now)
	if wait == 0 {
		return nil
	}
	th := Throttle{Limit: rateLimits[m], Subject: t.Name(), Unit: rateUnits[m]}.at(t.Throttling.Rate.Refused(m, wait, throttle.RateLimit(limit), now))
	return &th
}

// rateStates returns the state of each bound of the topic's rate.
func rateStates(t *topic.Topic, now time.Time) (out []LimitState) {
	limit := t.Settings().MaxRate
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	for m, bound := range []float64{limit.MessagesPerSecond, limit.BytesPerSecond} {
		if bound > 0 {
			s := t.Throttling.Rate.State(throttle.Measure(m), throttle.RateLimit(limit), now)
			out = append(out, LimitState{Throttle{Limit: rateLimits[m], Subject: t.Name(), Unit: rateUnits[m]}.at(s), s.On})
		}
	}
	return out
}
