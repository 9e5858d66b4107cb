package killswitch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

var ratio = Options{FailureRatio: 0.5, MinMessages: 4, Window: 30 * time.Second, Probe: 5 * time.Second}

// The states of the kill switch, by its events. s and f are a success and a failure, x is a dead
// letter, a digit waits for so many seconds and calls Tick when it is due.
func TestGateStates(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opts   Options
		events string
		state  State
		limit  int
	}{
		{"off", Options{}, "ffffffffff", Flowing, 64},
		{"too few", ratio, "fff", Flowing, 64},
		{"too many failures", ratio, "ffff", Tripped, 0},
		{"the ratio is reached", ratio, "ssff", Tripped, 0},
		{"it is not", ratio, "sssff", Flowing, 64},
		{"failures of the past", ratio, "ff99999sf", Flowing, 64},
		{"running handlers change nothing", ratio, "ffffsff", Tripped, 0},
		{"a probe", ratio, "ffff5", Probing, 1},
		{"a probe that fails", ratio, "ffff5f", Tripped, 0},
		{"another one", ratio, "ffff5f5", Probing, 1},
		{"one that succeeds", ratio, "ffff5s", Ramping, 1},
		{"a second later", ratio, "ffff5s1", Ramping, 2},
		{"five seconds later", ratio, "ffff5s5", Ramping, 32},
		{"six seconds later", ratio, "ffff5s6", Flowing, 64},
		{"a failure of many while it ramps", ratio, "ffff5s1sssf1", Ramping, 4},
		{"failures while it ramps", ratio, "ffff5s1ff", Tripped, 0},
		{"dead letters", Options{DeadLetters: 3, Window: 30 * time.Second, Probe: 5 * time.Second}, "xxx", Tripped, 0},
		{"few dead letters", Options{DeadLetters: 3, Window: 30 * time.Second, Probe: 5 * time.Second}, "xx99999x", Flowing, 64},
	} {
		g := New(tt.opts)
		now := time.Unix(0, 0)
		for _, e := range tt.events {
			switch e {
			case 's', 'f':
				g.Handled(now, e == 'f')
			case 'x':
				g.DeadLettered(now)
			default:
				for range e - '0' {
					now = now.Add(time.Second)
					g.Tick(now, 64)
				}
			}
		}
		assert.That(t, g.State() == tt.state && g.Limit(64) == tt.limit,
			"%s: state %d with a limit of %d, want %d and %d", tt.name, g.State(), g.Limit(64), tt.state, tt.limit)
		g.Pause(true)
		assert.That(t, g.Limit(64) == 0 && g.Shut(), "%s: paused, it lets messages through", tt.name)
	}
}

// The defaults are those in the documentation of consumer.KillSwitch, and replace only zeros.
func TestDefaults(t *testing.T) {
	for _, tt := range []struct{ o, want Options }{
		{Options{}, Options{MinMessages: 20, Window: 30 * time.Second, Probe: 5 * time.Second}},
		{Options{MinMessages: 1, Window: 2, Probe: 3}, Options{MinMessages: 1, Window: 2, Probe: 3}},
	} {
		got := tt.o.WithDefaults()
		assert.That(t, got == tt.want, "%+v becomes %+v, want %+v", tt.o, got, tt.want)
	}
}

// A message has five excuses, each with twice the delay of the one before, and they are forgotten
// with its end.
func TestExcuses(t *testing.T) {
	var e Excuses
	k := Key{"orders", "m"}
	for n, want := range []time.Duration{20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 320 * time.Second} {
		d, ok := e.Excuse(k, 5*time.Second)
		assert.That(t, ok && d == want, "excuse %d: %v, %v; want %v", n, d, ok, want)
	}
	for _, other := range []Key{{"returns", "m"}, {"orders", "n"}} {
		d, ok := e.Excuse(other, 5*time.Second)
		assert.That(t, ok && d == 20*time.Second, "another message: %v, %v", d, ok)
	}
	if _, ok := e.Excuse(k, 5*time.Second); ok || e.Count(k) != MaxExcuses || e.Len() != 3 {
		t.Errorf("a sixth excuse of %d messages", e.Len())
	}
	e.Forget(k)
	d, ok := e.Excuse(k, time.Second)
	assert.That(t, ok && d == 4*time.Second, "after its end: %v, %v", d, ok)
}

// Many excuses take bounded memory, and their delay grows with their number: the probes of that
// time can receive all of them, and as many other messages.
func TestManyExcuses(t *testing.T) {
	var e Excuses
	first := Key{"orders", "first"}
	for range MaxExcuses {
		e.Excuse(first, time.Second)
	}
	for i := range 100_000 {
		d, _ := e.Excuse(Key{"orders", fmt.Sprint(i)}, time.Second)
		received := int(d/time.Second) * Choice
		assert.MustThat(t, received >= 2*(e.Len()-Choice), "with %d excuses the delay is %v", e.Len(), d)
		_, ok := e.Excuse(first, time.Second)
		assert.MustThat(t, !ok || i >= 4000, "the excuses of the first message are forgotten after %d others", i)
	}
	assert.That(t, e.Len() <= 10_000, "%d excuses are kept", e.Len())
}

// A consumer of the model has a backlog, and as many handlers as the gate permits.
type consumer struct {
	*Gate
	t       *testing.T
	now     time.Time
	full    int // concurrency
	running int
	events  int // results, dead letters, pauses and resumptions
	ticks   int // that changed the state
	flowing bool
	tripped time.Time
}

// A consumer with a backlog always has a handler to start, one that is running, or a time in the
// future at which the gate changes, unless it is paused. The changes by time are bounded by the
// events, and after the last failure the consumer returns to its full concurrency. Trips and
// returns take turns.
func TestModel(t *testing.T) { model.Run(t, 1000, runModel) }

func runModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	o := Options{MinMessages: r.IntN(6), Window: time.Duration(r.IntN(40)) * time.Second, Probe: time.Duration(r.IntN(8000)) * time.Millisecond}
	if r.IntN(4) > 0 {
		o.FailureRatio = 0.1 + 0.9*r.Float64()
	}
	if r.IntN(3) > 0 {
		o.DeadLetters = 1 + r.IntN(5)
	}
	o = o.WithDefaults()
	c := &consumer{Gate: New(o), t: t, now: time.Unix(0, 0), full: 1 + r.IntN(100), flowing: true}
	failing := r.Float64()
	for range 1000 {
		if r.IntN(50) == 0 { // an outage begins or ends
			failing = []float64{0, 0.3, 1}[r.IntN(3)]
		}
		switch n := r.IntN(100); {
		case n < 40:
			c.start(1 + r.IntN(c.full))
		case n < 80:
			c.handled(r.Float64() < failing)
		case n < 85:
			c.events++
			c.DeadLettered(c.now)
		case n < 88:
			c.events++
			c.Pause(r.IntN(2) == 0)
		default:
			c.advance(time.Duration(r.Int64N(int64(3 * time.Second))))
		}
		if c.check(); t.Failed() {
			return
		}
	}
	c.Pause(false)
	for c.running > 0 { // the handlers of before may be one probe more
		c.handled(false)
		c.check()
	}
	// One probe, and a second for each doubling of at most 100 handlers.
	end := c.now.Add(o.Probe + 8*time.Second)
	for n := 0; c.State() != Flowing; n++ {
		if c.start(1); c.running > 0 {
			c.handled(false)
		}
		if wake := c.Wake(); !wake.IsZero() {
			c.advance(wake.Sub(c.now))
		}
		if c.check(); n > 20 || c.now.After(end) || t.Failed() {
			t.Errorf("state %d and not full concurrency %v after the last failure", c.State(), c.now.Sub(end.Add(-o.Probe-8*time.Second)))
			return
		}
	}
}

// start starts up to n handlers.
func (c *consumer) start(n int) { c.running = max(c.running, min(c.running+n, c.Limit(c.full))) }

func (c *consumer) handled(failed bool) {
	if c.running > 0 {
		c.running--
		c.events++
		c.Handled(c.now, failed)
	}
}

func (c *consumer) advance(d time.Duration) {
	c.now = c.now.Add(d)
	if c.Tick(c.now, c.full) {
		c.ticks++
	}
	assert.That(c.t, !c.Tick(c.now, c.full), "a second change at the same time")
}

func (c *consumer) check() {
	c.t.Helper()
	wake := c.Wake()
	if !wake.IsZero() && !wake.After(c.now) {
		c.advance(0)
		wake = c.Wake()
	}
	switch future := wake.After(c.now); {
	case !wake.IsZero() && !future:
		c.t.Errorf("state %d: the next change is %v late", c.State(), c.now.Sub(wake))
	case !c.paused && c.running == 0 && c.Limit(c.full) == 0 && !future:
		c.t.Errorf("state %d: nothing can be handled, and nothing changes that", c.State())
	case c.Limit(c.full) > c.full || c.Open() && c.Limit(c.full) < c.full:
		c.t.Errorf("state %d: %d of %d handlers may run", c.State(), c.Limit(c.full), c.full)
	case c.ticks > 8*c.events: // the probe, and seven doublings
		c.t.Errorf("%d changes by time for %d events", c.ticks, c.events)
	}
	for _, e := range c.Events() {
		assert.That(c.t, e.Tripped == c.flowing, "a trip or return follows one of its kind: %+v", e)
		if c.flowing = !e.Tripped; e.Tripped {
			c.tripped = c.now
		} else if e.Lasted != c.now.Sub(c.tripped) {
			c.t.Errorf("the trip lasted %v, not %v", e.Lasted, c.now.Sub(c.tripped))
		}
	}
}
