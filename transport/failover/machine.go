package failover

import "time"

// A Reason is the reason of a switch.
type Reason int

// The reasons of a switch.
const (
	NoSwitch   Reason = iota
	Failing           // sends to the endpoint, or probes of it, failed
	Throttling        // the endpoint throttled without an accepted send for longer than the grace
	Recovered         // an earlier endpoint has worked for long enough
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case NoSwitch:
		return "none"
	case Failing:
		return "failing"
	case Throttling:
		return "throttling"
	case Recovered:
		return "recovered"
	}
	return "unknown"
}

// health is the known state of one endpoint. The zero value is a working endpoint.
type health struct {
	down           bool      // the last probe failed
	failing        bool      // down, or its breaker is not closed
	throttledSince time.Time // the first throttle since the last success; zero for none
	wellSince      time.Time // while inactive, the first probe of an unbroken success; zero after a failed probe
	activeSince    time.Time // the last time it became active
	relapses       int       // consecutive switches away soon after it had become active
}

// rules are the options of the decision.
type rules struct {
	grace      time.Duration // negative: throttling is no reason to switch
	switchBack time.Duration
}

// maxRelapses bounds the doubling of the time for which an endpoint must work. After steady times
// that time as the active endpoint, its relapses are reset.
const (
	maxRelapses = 5
	steady      = 10
)

// throttling reports whether h has throttled for longer than the grace.
func (r rules) throttling(h health, now time.Time) bool {
	return r.grace >= 0 && !h.throttledSince.IsZero() && now.Sub(h.throttledSince) >= r.grace
}

// demanded returns the time for which an endpoint must work before sends return to it.
func (r rules) demanded(h health) time.Duration {
	return r.switchBack << min(h.relapses, maxRelapses)
}

// decide returns the endpoint for sends, and the reason if it is not the active one. It is a pure
// function.
func decide(now time.Time, active int, all []health, r rules) (next int, why Reason) {
	switch h := all[active]; {
	case h.failing:
		why = Failing
	case r.throttling(h, now):
		why = Throttling
	}
	for i, h := range all {
		if i == active || h.failing || r.throttling(h, now) {
			continue
		}
		well := !h.wellSince.IsZero() && now.Sub(h.wellSince) >= r.demanded(h)
		switch {
		case i < active && well && why == NoSwitch:
			return i, Recovered
		case why != NoSwitch && (i > active || !h.wellSince.IsZero()):
			return i, why
		}
	}
	return active, NoSwitch
}

// switched returns the states after a switch.
func switched(now time.Time, from, to int, all []health, r rules) []health {
	left := &all[from]
	if from < to {
		if left.activeSince.IsZero() || now.Sub(left.activeSince) >= steady*r.demanded(*left) {
			left.relapses = 0
		} else {
			left.relapses++
		}
	}
	left.throttledSince, left.wellSince = time.Time{}, time.Time{}
	all[to].activeSince, all[to].throttledSince = now, time.Time{}
	return all
}
