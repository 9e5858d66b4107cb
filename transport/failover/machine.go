package failover

import (
	"math"
	"time"
)

// A Reason is the reason of a switch.
type Reason int

// The reasons of a switch.
const (
	noSwitch   Reason = iota // of no event
	Failing                  // sends to the endpoint, or probes of it, failed
	Throttling               // the endpoint throttled without an accepted send for longer than the grace
	Recovered                // an earlier endpoint has worked for long enough
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case noSwitch:
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

// health is the known state of one endpoint. The zero value is a working endpoint. Results of sends
// change only the active endpoint's: a send to another one began before a switch.
type health struct {
	down           bool      // the last probe failed
	failures       int       // while active, the transient failures of sends in a row
	throttledSince time.Time // while active, the first throttle since the last accepted send; zero for none
	throttledLast  time.Time // the last throttle since then
	wellSince      time.Time // while inactive, the first probe of an unbroken success; zero after a failed probe
	activeSince    time.Time // the last time it became active
	proven         bool      // it has accepted a send since then
	relapses       int       // consecutive switches away soon after it had become active
}

// rules are the options of the decision.
type rules struct {
	failures   int           // of sends in a row, after which sends leave the endpoint
	grace      time.Duration // negative: throttling is no reason to switch
	switchBack time.Duration
}

// maxRelapses bounds the doubling of the time for which an endpoint must work. After steady times
// that time as the active endpoint, its relapses are reset.
const (
	maxRelapses = 5
	steady      = 10
)

// failing reports whether sends must leave h.
func (r rules) failing(h health) bool { return h.down || h.failures >= r.failures }

// throttling reports whether h has throttled for longer than the grace. Only throttles count, not
// the time after the last one, in which there may have been no sends.
func (r rules) throttling(h health) bool {
	return r.grace >= 0 && !h.throttledSince.IsZero() && h.throttledLast.Sub(h.throttledSince) >= r.grace
}

// throttled returns h after a throttle.
func (h health) throttled(now time.Time) health {
	if h.throttledSince.IsZero() {
		h.throttledSince = now
	}
	h.throttledLast = now
	return h
}

// failed returns h after a transient failure of a send.
func (h health) failed() health {
	h.failures++
	return h
}

// accepted returns h after an accepted send.
func (h health) accepted() health {
	h.failures, h.throttledSince, h.throttledLast, h.proven = 0, time.Time{}, time.Time{}, true
	return h
}

// spotless reports whether an accepted send would not change h.
func (h health) spotless() bool { return h.failures == 0 && h.throttledSince.IsZero() && h.proven }

// probed returns h after a probe.
func (h health) probed(now time.Time, ok bool) health {
	switch {
	case !ok:
		h.down, h.wellSince = true, time.Time{}
	case h.wellSince.IsZero():
		h.down, h.wellSince = false, now
	}
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
	case r.failing(h):
		why = Failing
	case r.throttling(h):
		why = Throttling
	}
	for i, h := range all {
		if i == active || r.failing(h) {
			continue
		}
		well := !h.wellSince.IsZero() && now.Sub(h.wellSince) >= r.demanded(h)
		switch {
		case i < active && well && why == noSwitch:
			return i, Recovered
		case why != noSwitch && (i > active || well || why == Failing && !h.wellSince.IsZero()):
			return i, why
		}
	}
	return active, noSwitch
}

// switched returns the states after a switch. Sends that leave an endpoint soon after their return,
// or before it accepted one of them, are a relapse.
func switched(now time.Time, from, to int, all []health, r rules) []health {
	left := all[from]
	if from < to {
		long := now.Sub(left.activeSince) >= times(r.demanded(left), steady)
		if left.activeSince.IsZero() || long && left.proven {
			left.relapses = 0
		} else {
			left.relapses++
		}
	}
	// Probes show the health of an inactive endpoint, and sends that of the active one.
	all[from] = health{down: left.down, relapses: left.relapses, activeSince: left.activeSince}
	all[to] = health{down: all[to].down, relapses: all[to].relapses, activeSince: now}
	return all
}
