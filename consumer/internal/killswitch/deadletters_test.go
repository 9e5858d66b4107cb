package killswitch

import (
	"testing"
	"time"
)

// Probe is the time from a trip to the next probe. A tripped switch does not trip again: dead
// letters of handlers that began before the trip, of probes and during the return change nothing.
func TestDeadLettersWhileTheSwitchHoldsBack(t *testing.T) {
	begin := time.Unix(0, 0)
	for _, tt := range []struct {
		name    string
		prepare func(g *Gate) (now time.Time) // brings the gate into the state
		state   State
	}{
		{"tripped", func(*Gate) time.Time { return begin.Add(4 * time.Second) }, Tripped},
		{"probing", func(g *Gate) time.Time {
			g.Tick(begin.Add(5*time.Second), 64)
			return begin.Add(6 * time.Second)
		}, Probing},
		{"ramping", func(g *Gate) time.Time {
			g.Tick(begin.Add(5*time.Second), 64)
			g.Handled(begin.Add(6*time.Second), false)
			return begin.Add(6500 * time.Millisecond)
		}, Ramping},
	} {
		g := New(Options{DeadLetters: 1, Window: 30 * time.Second, Probe: 5 * time.Second})
		if !g.DeadLettered(begin) {
			t.Fatalf("%s: the first dead letter does not trip the switch", tt.name)
		}
		now := tt.prepare(g)
		wake := g.Wake()
		if changed := g.DeadLettered(now); changed || g.State() != tt.state || !g.Wake().Equal(wake) {
			t.Errorf("%s: a dead letter changed the state to %d and the next tick from %v to %v", tt.name, g.State(), wake, g.Wake())
		}
	}
}
