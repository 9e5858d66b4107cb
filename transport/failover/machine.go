package failover

import "time"

// A Reason says why sends go to another endpoint.
type Reason int

// The reasons to switch.
const (
	NoSwitch   Reason = iota
	Failing           // sends to the endpoint, or probes of it, failed
	Throttling        // the endpoint throttled without a break for longer than the grace
	Recovered         // an earlier endpoint was well for long enough
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

// health is what is known about one endpoint. The zero value is one that works.
type health struct {
	down           bool      // the last probe failed
	failing        bool      // down, or its breaker is not closed
	throttledSince time.Time // of the throttles without a success since; zero for none
	wellSince      time.Time // since when all probes succeeded, while not active; zero if the last one did not
	activeSince    time.Time // when it became active last
	relapses       int       // how often in a row it was left soon after it had become active again
}

// rules are the options that decide.
type rules struct {
	grace      time.Duration // negative: throttling is no reason
	switchBack time.Duration
}

// maxRelapses bounds the doubling of the time that an endpoint has to be well, and
// steady is after how many times that time an active endpoint's relapses are forgotten.
const (
	maxRelapses = 5
	steady      = 10
)

// throttling reports whether h throttled for longer than the grace.
func (r rules) throttling(h health, now time.Time) bool {
	return r.grace >= 0 && !h.throttledSince.IsZero() && now.Sub(h.throttledSince) >= r.grace
}

// demanded is how long an endpoint has to be well before sends return to it.
func (r rules) demanded(h health) time.Duration {
	return r.switchBack << min(h.relapses, maxRelapses)
}

// decide returns the endpoint that sends should go to, and why it is not the active
// one. It depends on its arguments only.
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

// switched returns the healths after a switch.
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
