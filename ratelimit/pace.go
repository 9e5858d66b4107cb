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
	p, _ = p.grown(now, o)
	p = p.measured(now)
	if !p.decreased.IsZero() && now.Sub(p.decreased) < decreaseGap {
		return p
	}
	base, seen := p.limit, p.measuredRate(now)
	p = p.learnt(seen, now, o)
	if seen > 0 || base == rate.Inf {
		base = min(base, seen)
	}
	// A rejection after a pause measures nothing: one throttle does not take more
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

// grown brings the limit up to date. It also returns the tokens that a bucket without a bound
// regained since the last update.
func (p pace) grown(now time.Time, o AdaptiveOptions) (next pace, regained float64) {
	since := now.Sub(p.grew).Seconds()
	if since <= 0 {
		return p, 0
	}
	for _, ph := range p.phases(o) {
		part := min(since, ph.lasts)
		regained += ph.tokens(part)
		p.limit = ph.limit(part)
		if ph.doubles {
			p.step = max(p.step, p.limit*rate.Limit(o.Increase))
		}
		if since -= part; since <= 0 {
			break
		}
	}
	p.grew = now
	return p, regained
}

// until returns the time to regain the tokens if no throttle comes meanwhile, rounded to the
// nearest nanosecond like [timeFor]. The pace is up to date. A billionth of a token is 0: such a
// rest is a rounding error, which can be too small for a further wait to change it.
func (p pace) until(tokens float64, o AdaptiveOptions) time.Duration {
	if tokens <= 1e-9 || p.limit == rate.Inf {
		return 0
	}
	var wait float64
	for _, ph := range p.phases(o) {
		if all := ph.tokens(ph.lasts); tokens > all {
			tokens -= all
			wait += ph.lasts
			continue
		}
		return duration(wait + ph.time(tokens))
	}
	return math.MaxInt64
}

// phases returns how the limit changes from now on if no throttle comes. The last phase has no end.
// Up to the known rate the limit doubles in each second. Otherwise a server that rejected all
// events for some seconds would get hardly any events for hours.
func (p pace) phases(o AdaptiveOptions) []phase {
	var list []phase
	from, step := p.limit, p.step
	if top := min(p.known, o.Ceiling); step > 0 && from < top {
		list = append(list, phase{from: from, to: top, doubles: true, lasts: math.Log2(float64(top / from))})
		from, step = top, max(step, top*rate.Limit(o.Increase))
	}
	if step > 0 && from < o.Ceiling {
		list = append(list, phase{from: from, to: o.Ceiling, slope: step, lasts: float64((o.Ceiling - from) / step)})
		from = o.Ceiling
	}
	if from < rate.Inf || len(list) == 0 {
		list = append(list, phase{from: from, to: from, lasts: math.Inf(1)})
	}
	return list
}

// A phase is a time in which a limit doubles in each second, or grows by slope in each second.
type phase struct {
	from, to rate.Limit
	doubles  bool
	slope    rate.Limit
	lasts    float64 // seconds
}

// limit returns the limit t seconds after the begin.
func (ph phase) limit(t float64) rate.Limit {
	switch {
	case t >= ph.lasts:
		return ph.to
	case ph.doubles:
		return min(ph.to, ph.from*rate.Limit(math.Exp2(t)))
	}
	return min(ph.to, ph.from+ph.slope*rate.Limit(t))
}

// tokens returns the tokens that are regained in the first t seconds: the integral of the limit.
func (ph phase) tokens(t float64) float64 {
	switch {
	case t <= 0:
		return 0
	case ph.doubles:
		return float64(ph.limit(t)-ph.from) / math.Ln2
	}
	return t * float64(ph.from+ph.limit(t)) / 2
}

// time returns the seconds in which n tokens are regained: the inverse of tokens.
func (ph phase) time(n float64) float64 {
	from := float64(ph.from)
	if ph.doubles {
		return math.Log2(1 + n*math.Ln2/from)
	}
	return 2 * n / (from + math.Sqrt(from*from+2*float64(ph.slope)*n))
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
