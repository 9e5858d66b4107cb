package failover

import (
	"math"
	"time"
)

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
	throttledSince time.Time // while active, the first throttle since the last success; zero for none
	throttledLast  time.Time // the last throttle since then
	throttledUntil time.Time // the end of the wait that it requested
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

// throttling reports whether h has throttled for longer than the grace. Only throttles count, not
// the time after the last one, in which there may have been no sends.
func (r rules) throttling(h health) bool {
	return r.grace >= 0 && !h.throttledSince.IsZero() && h.throttledLast.Sub(h.throttledSince) >= r.grace
}

// throttle returns h after a throttle that requested a wait. A throttle more than the grace after
// the end of the previous wait begins a new throttling.
func (r rules) throttle(h health, now time.Time, wait time.Duration) health {
	if h.throttledSince.IsZero() || now.Sub(h.throttledUntil) > r.grace {
		h.throttledSince = now
	}
	h.throttledLast, h.throttledUntil = now, now.Add(max(0, wait))
	return h
}

// accepted returns h after an accepted send.
func (h health) accepted() health {
	h.throttledSince, h.throttledLast, h.throttledUntil = time.Time{}, time.Time{}, time.Time{}
	return h
}

// demanded returns the time for which an endpoint must work before sends return to it.
func (r rules) demanded(h health) time.Duration {
	return times(r.switchBack, 1<<min(h.relapses, maxRelapses))
}

// times returns d·n, or the longest duration if that is less.
func times(d time.Duration, n int) time.Duration {
	if d > math.MaxInt64/time.Duration(n) {
		return math.MaxInt64
	}
	return d * time.Duration(n)
}

// decide returns the endpoint for sends, and the reason if it is not the active one. It is a pure
// function.
//
// Sends leave a failing endpoint for any endpoint that works. They leave a throttling one for a
// later endpoint, or for an earlier one that sends could return to anyway: the earlier one may have
// been left because it throttles too.
func decide(now time.Time, active int, all []health, r rules) (next int, why Reason) {
	switch h := all[active]; {
	case h.failing:
		why = Failing
	case r.throttling(h):
		why = Throttling
	}
	for i, h := range all {
		if i == active || h.failing || r.throttling(h) {
			continue
		}
		well := !h.wellSince.IsZero() && now.Sub(h.wellSince) >= r.demanded(h)
		switch {
		case i < active && well && why == NoSwitch:
			return i, Recovered
		case why != NoSwitch && (i > active || well || why == Failing && !h.wellSince.IsZero()):
			return i, why
		}
	}
	return active, NoSwitch
}

// switched returns the states after a switch.
func switched(now time.Time, from, to int, all []health, r rules) []health {
	left := &all[from]
	if from < to {
		if left.activeSince.IsZero() || now.Sub(left.activeSince) >= times(r.demanded(*left), steady) {
			left.relapses = 0
		} else {
			left.relapses++
		}
	}
	*left, all[to] = left.accepted(), all[to].accepted() // the throttles of an earlier time do not count
	left.wellSince, all[to].activeSince = time.Time{}, now
	return all
}
