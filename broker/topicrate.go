package broker

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tidegate/tidegate/broker/internal/throttle"
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
