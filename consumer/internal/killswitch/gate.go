// Package killswitch is the kill switch and the manual pause of a push consumer, as a state machine
// without a clock, locks or goroutines.
package killswitch

import (
	"math"
	"time"
)

// Options are the settings of consumer.KillSwitch.
type Options struct {
	FailureRatio float64       // of the messages handled last; Zero means that failures do not trip the switch
	DeadLetters  int           // within Window; Zero means that they do not trip it
	MinMessages  int           // that FailureRatio is taken of
	Window       time.Duration // how long results count
	Probe        time.Duration // from a trip to the next probe
}

// WithDefaults returns o with its defaults filled in, as New expects it.
func (o Options) WithDefaults() Options {
	if o.MinMessages == 0 {
		o.MinMessages = 20
	}
	if o.Window == 0 {
		o.Window = 30 * time.Second
	}
	if o.Probe == 0 {
		o.Probe = 5 * time.Second
	}
	return o
}

func (o Options) enabled() bool { return o.FailureRatio > 0 || o.DeadLetters > 0 }

// A State is a state of the kill switch.
type State int

// The states.
const (
	Flowing State = iota
	Tripped       // nothing is handled until the next probe
	Probing       // one message is handled
	Ramping       // the concurrency doubles once a second
)

// An Event is a trip from Flowing, or the return to it.
type Event struct {
	Tripped     bool
	Handled     int           // messages that the trip was decided by
	Failed      int           // of Handled
	DeadLetters int           // dead letters that the trip was decided by
	Lasted      time.Duration // of a return: the time since the trip
}

// A tally counts results.
type tally struct{ handled, failed int }

// recent counts the latest results: those of the current half of a window and of the half before.
type recent struct {
	begun  time.Time // of the current half
	counts [2]tally  // of the current half and of the half before
}

// add counts t at now. The current half ends when it is older than half the window, or has handled
// enough.
func (r *recent) add(now time.Time, t tally, window time.Duration, enough int) {
	half := window / 2
	if age := now.Sub(r.begun); age >= half || r.counts[0].handled >= enough {
		r.counts[1] = r.counts[0]
		if age >= 2*half {
			r.counts[1] = tally{}
		}
		r.counts[0], r.begun = tally{}, now
	}
	r.counts[0].handled += t.handled
	r.counts[0].failed += t.failed
}

func (r *recent) sum() tally {
	return tally{r.counts[0].handled + r.counts[1].handled, r.counts[0].failed + r.counts[1].failed}
}

// A Gate decides how many handlers may run. Create one with [New].
//
// Wake-ups: in Tripped and Ramping, Wake is the time of the next Tick. In Probing, the result of
// the probe ends the state; if there is no message, the next arrival is the probe. Pause ends a
// pause.
//
// Bound on steps: Tripped lasts at least Options.Probe, so there is at most one probe, and one
// Tick, in that time. A ramp has a Tick each second and ends after as many doublings as the
// concurrency has binary digits. [Excuses] bounds the failures of one message that count for
// nothing.
type Gate struct {
	opts    Options
	paused  bool
	state   State
	next    time.Time // of Tripped: the probe; of Ramping: the next doubling
	allow   int       // handlers at a time, of Ramping
	recent  recent    // results of handlers
	dead    recent    // dead letters, as failed
	tripped time.Time // when Flowing ended
	events  []Event   // that Events has not returned
}

// New returns a gate that lets everything through.
func New(o Options) *Gate { return &Gate{opts: o} }

// State returns the state of the switch.
func (g *Gate) State() State { return g.state }

// Pause sets the manual pause, and reports whether that changed anything.
func (g *Gate) Pause(paused bool) (changed bool) {
	changed = g.paused != paused
	g.paused = paused
	return changed
}

// Shut reports whether nothing may be received or handled.
func (g *Gate) Shut() bool { return g.paused || g.state == Tripped }

// Open reports whether nothing is held back.
func (g *Gate) Open() bool { return !g.paused && g.state == Flowing }

// Limit returns how many handlers may run at the same time, at most max.
func (g *Gate) Limit(most int) int {
	switch {
	case g.Shut():
		return 0
	case g.state == Probing:
		return min(1, most)
	case g.state == Ramping:
		return min(g.allow, most)
	}
	return most
}

// Events returns the trips and returns since its last call.
func (g *Gate) Events() []Event {
	events := g.events
	g.events = nil
	return events
}

// Handled notes the result of a handler. It returns whether a failure is excusable, because a
// dependency may be away and the message not at fault, and whether the state changed.
func (g *Gate) Handled(now time.Time, failed bool) (excusable, changed bool) {
	if !g.opts.enabled() {
		return false, false
	}
	switch g.state {
	case Tripped:
		return failed, false // it was running when the switch tripped
	case Probing:
		if failed {
			g.trip(now)
			return true, true
		}
		g.state, g.allow, g.next = Ramping, 1, now.Add(time.Second)
		g.recent = recent{}
		return false, true
	}
	t := tally{handled: 1}
	if failed {
		t.failed = 1
	}
	g.recent.add(now, t, g.opts.Window, g.opts.MinMessages)
	if failed && g.excessive(g.state == Ramping) {
		g.trip(now)
		return true, true
	}
	return failed && g.state == Ramping, false
}

// DeadLettered notes a dead letter, and returns whether the state changed.
func (g *Gate) DeadLettered(now time.Time) (changed bool) {
	if g.opts.DeadLetters == 0 || g.state != Flowing {
		return false
	}
	g.dead.add(now, tally{failed: 1}, g.opts.Window, math.MaxInt)
	if g.dead.sum().failed < g.opts.DeadLetters {
		return false
	}
	g.trip(now)
	return true
}

func (g *Gate) trip(now time.Time) {
	if g.state == Flowing {
		t := g.recent.sum()
		g.events = append(g.events, Event{Tripped: true, Handled: t.handled, Failed: t.failed, DeadLetters: g.dead.sum().failed})
		g.tripped = now
	}
	g.state, g.next = Tripped, now.Add(g.opts.Probe)
	g.recent, g.dead = recent{}, recent{}
}

// excessive reports whether too many messages failed. While the concurrency grows two are enough.
func (g *Gate) excessive(growing bool) bool {
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

// Wake returns when to call Tick, zero for never.
func (g *Gate) Wake() time.Time {
	if g.state == Tripped || g.state == Ramping {
		return g.next
	}
	return time.Time{}
}

// Tick makes the changes that are due at now, and returns whether the state changed. full is the
// concurrency.
func (g *Gate) Tick(now time.Time, full int) (changed bool) {
	if w := g.Wake(); w.IsZero() || now.Before(w) {
		return false
	}
	if g.state == Tripped {
		g.state = Probing
		return true
	}
	if g.allow *= 2; g.allow >= full {
		g.state = Flowing
		g.events = append(g.events, Event{Lasted: now.Sub(g.tripped)})
	} else {
		g.next = now.Add(time.Second)
	}
	return true
}

// MaxExcuses is the number of failures of one message that a consumer excuses.
const MaxExcuses = 5

// Choice is the number of messages that a probe chooses from if messages were excused.
const Choice = 32

// excused is the number of messages after which the oldest excuses are forgotten, at the earliest.
const excused = 4096

// A Key identifies a message.
type Key struct{ Topic, ID string }

// Excuses count the excused failures of messages. The zero value is empty.
//
// They are bounded: an excuse is forgotten once some thousand other messages were excused after it,
// because another consumer of the group may have handled the message in the meantime.
type Excuses struct{ current, before map[Key]int }

// Count returns the number of excuses of a message.
func (e *Excuses) Count(k Key) int { return max(e.current[k], e.before[k]) }

// Len returns the number of excused messages.
func (e *Excuses) Len() int { return len(e.current) + len(e.before) }

// Excuse excuses a failure of a message unless the message has no excuse left. It returns the delay
// of the next delivery, which doubles with each further excuse of the message.
func (e *Excuses) Excuse(k Key, probe time.Duration) (delay time.Duration, ok bool) {
	n := e.Count(k)
	if n >= MaxExcuses {
		return 0, false
	}
	delete(e.before, k)
	if len(e.current) >= excused {
		e.current, e.before = nil, e.current
	}
	if e.current == nil {
		e.current = map[Key]int{}
	}
	e.current[k] = n + 1
	return max(probe<<(n+2), e.Delay(probe)), true
}

// Delay returns the time after which an excused message may be received again. It is so long that
// the probes of that time, which receive up to [Choice] messages each, also receive messages
// without an excuse.
func (e *Excuses) Delay(probe time.Duration) time.Duration {
	return probe * time.Duration(max(4, e.Len()/(Choice/2)))
}

// Forget removes the excuses of a message that has ended.
func (e *Excuses) Forget(k Key) {
	delete(e.current, k)
	delete(e.before, k)
}
