package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// throttleRate returns the topic's rate as a throttle if the message comes too
// early, and takes it from the rate if not. by is nil if nothing is sent.
func (t *topic) throttleRate(by *sender, now time.Time) *Throttle {
	limit := t.config.Load().MaxRate
	if limit == (Rate{}) || by == nil {
		return nil
	}
	t.gatesMu.Lock()
	defer t.gatesMu.Unlock()
	m, wait := t.rate.Take(throttle.RateLimit(limit), by.size, now)
	if wait == 0 {
		return nil
	}
	th := Throttle{Limit: rateLimits[m], Subject: t.name, Unit: rateUnits[m]}.at(t.rate.Refused(m, wait, throttle.RateLimit(limit), now))
	return &th
}

// rateStates returns the state of each bound of the topic's rate.
func (t *topic) rateStates(now time.Time) (out []LimitState) {
	limit := t.config.Load().MaxRate
	t.gatesMu.Lock()
	defer t.gatesMu.Unlock()
	for m, bound := range []float64{limit.MessagesPerSecond, limit.BytesPerSecond} {
		if bound > 0 {
			s := t.rate.State(throttle.Measure(m), throttle.RateLimit(limit), now)
			out = append(out, LimitState{Throttle{Limit: rateLimits[m], Subject: t.name, Unit: rateUnits[m]}.at(s), s.On})
		}
	}
	return out
}
