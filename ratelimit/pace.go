package ratelimit

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

const (
	// decreaseGap is the shortest time between two decreases, so that the throttles of concurrent
	// requests count once.
	decreaseGap = 100 * time.Millisecond

	// growStep is the shortest time between two increases, so that most calls do not change the
	// limiter.
	growStep = 20 * time.Millisecond

	// measureWindow is the length of a window in which accepted events are counted.
	measureWindow = 500 * time.Millisecond
)

// A pace is the state of an [Adaptive]. Its methods are pure functions that return the next state.
type pace struct {
	limit     rate.Limit
	step      rate.Limit // added in each second; zero before the first throttle
	known     rate.Limit // below it the limit doubles in each second; zero if it never does
	learned   time.Time  // last change of known
	decreased time.Time  // last; zero before the first throttle
	grew      time.Time  // when limit was last brought up to date

	count   int       // events accepted since started
	started time.Time // of the current window; zero before the first event
	seen    rate.Limit
}

// accepted counts an event that the server accepted.
func (p pace) accepted(now time.Time) pace {
	p = p.measured(now)
	p.count++
	return p
}

// measured closes the current window if it is over.
func (p pace) measured(now time.Time) pace {
	switch since := now.Sub(p.started); {
	case p.started.IsZero():
		p.started = now
	case since >= measureWindow:
		p.seen = rate.Limit(float64(p.count) / since.Seconds())
		p.count, p.started = 0, now
	}
	return p
}

// throttled lowers the limit. The rate that the server accepted lately bounds it,
// so one throttle is enough after a capacity fell to a fraction.
func (p pace) throttled(now time.Time, o AdaptiveOptions) pace {
	p = p.grown(now, o).measured(now)
	if !p.decreased.IsZero() && now.Sub(p.decreased) < decreaseGap {
		return p
	}
	base, seen := p.limit, p.measuredRate(now)
	p = p.learnt(seen, now, o)
	if seen > 0 || base == rate.Inf {
		base = min(base, seen)
	}
	// A refusal after a pause measures nothing: one throttle does not take more
	// than half of a limit.
	if p.limit != rate.Inf {
		base = max(base, p.limit/2)
	}
	p.limit = max(o.Floor, base*rate.Limit(o.Decrease))
	p.step = p.limit * rate.Limit(o.Increase)
	p.decreased, p.grew = now, now
	return p
}

// learnt updates the known rate at a throttle: seen is the rate at which the server accepted events
// lately. A lower one counts half in each second, because a window in which the throttling began
// shows too little.
func (p pace) learnt(seen rate.Limit, now time.Time, o AdaptiveOptions) pace {
	share := rate.Limit(o.Decrease)
	switch {
	case seen == 0 && p.limit == rate.Inf: // nothing is known
		p.known = rate.Inf
	case seen == 0:
	case p.known == 0, p.known == rate.Inf, seen*share >= p.known:
		p.known, p.learned = seen*share, now
	case now.Sub(p.learned) >= 2*measureWindow:
		p.known, p.learned = max(seen*share, p.known/2), now
	}
	return p
}

// grown adds the growth of the limit since its last update. Up to the known rate the limit doubles
// in each second. Otherwise a server that refused everything for some seconds would be sent hardly
// anything for hours.
func (p pace) grown(now time.Time, o AdaptiveOptions) pace {
	since := now.Sub(p.grew)
	if p.step == 0 || p.limit >= o.Ceiling || since < growStep {
		return p
	}
	rest := since.Seconds()
	if p.limit < p.known {
		doublings := min(rest, math.Log2(float64(p.known/p.limit)))
		p.limit = min(p.known, p.limit*rate.Limit(math.Exp2(doublings)))
		p.step = max(p.step, p.limit*rate.Limit(o.Increase))
		rest -= doublings
	}
	if rest > 0 {
		p.limit += p.step * rate.Limit(rest)
	}
	p.limit = min(o.Ceiling, p.limit)
	p.grew = now
	return p
}

// measuredRate returns the rate at which the server accepted events lately: the
// higher one of the last window and of the current one, if that is long enough.
func (p pace) measuredRate(now time.Time) rate.Limit {
	since := now.Sub(p.started)
	if since < decreaseGap && p.seen > 0 {
		return p.seen
	}
	return max(p.seen, rate.Limit(float64(p.count)/max(since, decreaseGap/10).Seconds()))
}
