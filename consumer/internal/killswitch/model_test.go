package killswitch

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

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
