package consumer

import (
	"math"
	"time"
)

// A KillSwitch stops a consumer whose handlers fail in large numbers, as in the outage of
// a dependency: polling stops, messages that no handler has begun with are released, and failures cost no
// attempt where the server can release a message without counting it ([transport.Capabilities].Suspend). After
// Probe one message is tried. Once that succeeds, the concurrency grows to its full value within a few seconds.
// The zero value never stops the consumer.
type KillSwitch struct {
	// FailureRatio is the part of the messages handled last, from above 0 to 1, whose failure
	// trips the switch. Zero means that failures do not trip it.
	FailureRatio float64

	// DeadLetters is how many dead letters within Window trip the switch. Zero means that they do not.
	DeadLetters int

	// MinMessages is how many messages FailureRatio is taken of: the last MinMessages at least, and
	// twice as many at most. Default: 20.
	MinMessages int

	// Window is how long results and dead letters count. Default: 30 s.
	Window time.Duration

	// Probe is the time from a trip or a failed probe to the next probe. Default: 5 s.
	Probe time.Duration
}

func (k KillSwitch) enabled() bool { return k.FailureRatio > 0 || k.DeadLetters > 0 }

func (k KillSwitch) withDefaults() KillSwitch {
	if k.MinMessages == 0 {
		k.MinMessages = 20
	}
	if k.Window == 0 {
		k.Window = 30 * time.Second
	}
	if k.Probe == 0 {
		k.Probe = 5 * time.Second
	}
	return k
}

// A gateState is a state of the kill switch.
type gateState int

const (
	flowing gateState = iota
	tripped           // nothing is handled until the next probe
	probing           // one message is handled
	ramping           // the concurrency doubles once a second
)

// A tally counts results.
type tally struct{ handled, failed int }

// recent counts what happened lately: in the current half of a window and in the one before.
type recent struct {
	begun  time.Time // of the current half
	halves [2]tally
}

// add counts t at now. The current half ends when it is older than half the window, or has handled enough.
func (r *recent) add(now time.Time, t tally, window time.Duration, enough int) {
	half := window / 2
	if age := now.Sub(r.begun); age >= half || r.halves[0].handled >= enough {
		r.halves[1] = r.halves[0]
		if age >= 2*half {
			r.halves[1] = tally{}
		}
		r.halves[0], r.begun = tally{}, now
	}
	r.halves[0].handled += t.handled
	r.halves[0].failed += t.failed
}

func (r *recent) sum() tally {
	return tally{r.halves[0].handled + r.halves[1].handled, r.halves[0].failed + r.halves[1].failed}
}

// gate is the kill switch and the manual pause, as a state machine without a clock.
type gate struct {
	opts   KillSwitch
	paused bool
	state  gateState
	next   time.Time // of tripped: the probe; of ramping: the next doubling
	allow  int       // handlers at a time, of ramping
	recent recent    // results of handlers
	dead   recent    // dead letters, as failed
}

func newGate(k KillSwitch) gate { return gate{opts: k} }

// shut reports whether nothing may be received or handled.
func (g *gate) shut() bool { return g.paused || g.state == tripped }

// open reports whether nothing is held back.
func (g *gate) open() bool { return !g.paused && g.state == flowing }

// limit returns how many handlers may run at the same time, at most max.
func (g *gate) limit(most int) int {
	switch {
	case g.shut():
		return 0
	case g.state == probing:
		return min(1, most)
	case g.state == ramping:
		return min(g.allow, most)
	}
	return most
}

// handled notes the result of a handler. It returns whether a failure is to be released instead of counted:
// while the dependency is away it is not the message's fault; and whether the state changed.
func (g *gate) handled(now time.Time, failed bool) (excused, changed bool) {
	if !g.opts.enabled() {
		return false, false
	}
	switch g.state {
	case tripped:
		return failed, false // it was running when the switch tripped
	case probing:
		if failed {
			g.trip(now)
			return true, true
		}
		g.state, g.allow, g.next = ramping, 1, now.Add(time.Second)
		g.recent = recent{}
		return false, true
	}
	t := tally{handled: 1}
	if failed {
		t.failed = 1
	}
	g.recent.add(now, t, g.opts.Window, g.opts.MinMessages)
	if failed && g.excessive(g.state == ramping) {
		g.trip(now)
		return true, true
	}
	return failed && g.state == ramping, false
}

// deadLettered notes a dead letter, and returns whether the state changed.
func (g *gate) deadLettered(now time.Time) (changed bool) {
	if g.opts.DeadLetters == 0 || g.state != flowing {
		return false
	}
	g.dead.add(now, tally{failed: 1}, g.opts.Window, math.MaxInt)
	if g.dead.sum().failed < g.opts.DeadLetters {
		return false
	}
	g.trip(now)
	return true
}

func (g *gate) trip(now time.Time) {
	g.state, g.next = tripped, now.Add(g.opts.Probe)
	g.recent, g.dead = recent{}, recent{}
}

// excessive reports whether too many messages failed. While the concurrency grows two are enough.
func (g *gate) excessive(growing bool) bool {
	if g.opts.FailureRatio <= 0 {
		return false
	}
	t := g.recent.sum()
	least := g.opts.MinMessages
	if growing {
		least = 2
	}
	return t.handled >= least && float64(t.failed) >= g.opts.FailureRatio*float64(t.handled)
}

// wake returns when to call tick, zero for never.
func (g *gate) wake() time.Time {
	if g.state == tripped || g.state == ramping {
		return g.next
	}
	return time.Time{}
}

// tick carries out what is due at now, and returns whether the state changed. full is the concurrency.
func (g *gate) tick(now time.Time, full int) (changed bool) {
	if w := g.wake(); w.IsZero() || now.Before(w) {
		return false
	}
	if g.state == tripped {
		g.state = probing
		return true
	}
	if g.allow *= 2; g.allow >= full {
		g.state = flowing
	} else {
		g.next = now.Add(time.Second)
	}
	return true
}
