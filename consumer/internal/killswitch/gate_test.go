package killswitch

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
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
