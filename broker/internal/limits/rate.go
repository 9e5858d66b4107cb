package limits

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// RateChanged applies a change of a topic's settings to the state of its rate. A measure without a
// limit forgets the earlier sends, so that a later limit begins with its whole burst.
func RateChanged(t *topic.Topic) {
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	t.Throttling.Rate.Fill(throttle.RateLimit(t.Settings().MaxRate))
}

// checkRate takes a message from the topic's rate, or returns the rate as a throttle if the message
// is too early. If by is nil, nothing is sent, and checkRate returns nil.
func checkRate(t *topic.Topic, by *Sender, now time.Time) *status.Throttle {
	limit := t.Settings().MaxRate
	if limit == (settings.Rate{}) || by == nil {
		return nil
	}
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	m, wait := t.Throttling.Rate.Take(throttle.RateLimit(limit), by.Size, now)
	if wait == 0 {
		return nil
	}
	th := at(rateThrottle(t, m), t.Throttling.Rate.Refused(m, wait, throttle.RateLimit(limit), now))
	return &th
}

// rateStates returns the state of each bound of the topic's rate.
func rateStates(t *topic.Topic, now time.Time) (out []status.LimitState) {
	limit := t.Settings().MaxRate
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	for i, bound := range []float64{limit.MessagesPerSecond, limit.BytesPerSecond} {
		if m := throttle.Measure(i); bound > 0 {
			out = append(out, stateOf(rateThrottle(t, m), t.Throttling.Rate.State(m, throttle.RateLimit(limit), now)))
		}
	}
	return out
}

func rateThrottle(t *topic.Topic, m throttle.Measure) status.Throttle {
	return status.Throttle{Limit: rateLimits[m], Subject: t.Name(), Unit: rateUnits[m]}
}
