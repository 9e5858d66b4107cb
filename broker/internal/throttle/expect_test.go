package throttle

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestExpect compares the estimates of simulated drains with arithmetic: the wanted time is the
// rest of the backlog above 80 % of the limit, divided by the rate of the simulation.
func TestExpect(t *testing.T) {
	type part struct {
		seconds float64 // length
		every   float64 // seconds between steps; 0 means that nothing drains
		batch   int64   // messages of a step
		random  bool    // the times between steps are exponential
	}
	for name, c := range map[string]struct {
		mark  int64
		parts []part
		want  time.Duration // 0: no estimate
		off   float64       // the tolerated factor
	}{
		// (50 000 - 60×20 - 40 000) / 20
		"steady, above the longest wait of producers": {50_000, []part{{60, 0.05, 1, false}}, 440 * time.Second, 1.1},
		// (50 000 - 6×200 - 40 000) / 20, less the time since the last step
		"batches": {50_000, []part{{65, 10, 200, false}}, 435 * time.Second, 1.2},
		// (100 - 10 - 80) / 0.1
		"slow": {100, []part{{100, 10, 1, false}}, 100 * time.Second, 1.2},
		// (50 000 - 100×5 - 40 000) / 5
		"random": {50_000, []part{{100, 0.2, 1, true}}, 1900 * time.Second, 1.5},
		// (50 000 - 100×20 - 40 000) / 20: the pause before counts not
		"after a pause": {50_000, []part{{600, 0, 0, false}, {100, 0.05, 1, false}}, 400 * time.Second, 1.1},
		// (50 000 - 100×40 - 50×20 - 40 000) / 20
		"twice as fast before":     {50_000, []part{{100, 0.025, 1, false}, {50, 0.05, 1, false}}, 250 * time.Second, 1.1},
		"ten times as fast before": {50_000, []part{{100, 0.025, 1, false}, {50, 0.25, 1, false}}, 0, 0},
		"just begun":               {50_000, []part{{9, 0.05, 1, false}}, 0, 0},
		"stopped":                  {50_000, []part{{60, 0.05, 1, false}, {60, 0, 0, false}}, 0, 0},
		"nothing drains":           {50_000, []part{{60, 0, 0, false}}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(7, 0))
			var b Backlog
			var drain Drain
			now, value, marks := time.Now(), Amount{ByMessages: c.mark}, Amount{ByMessages: c.mark}
			b.Update(value, marks, now)
			for _, p := range c.parts {
				end := now.Add(time.Duration(p.seconds * float64(time.Second)))
				for p.every > 0 {
					gap := p.every
					if p.random {
						gap *= rnd.ExpFloat64()
					}
					at := now.Add(time.Duration(gap * float64(time.Second)))
					if at.After(end) {
						break
					}
					now = at
					value[ByMessages] -= p.batch
					drain.Add(p.batch, 0, true, now)
					b.Update(value, marks, now)
				}
				for ; now.Before(end.Add(-time.Second)); now = now.Add(time.Second) {
					b.Update(value, marks, now)
				}
				now = end
			}
			resume := resumeMark(c.mark)
			messages, _ := drain.Rate(now)
			got := b.Expect(ByMessages, value, marks, Draining{Messages: messages}.Until(ByMessages, value, resume), now)
			if c.want == 0 {
				if got != (Range{}) {
					t.Errorf("the estimate is %v to %v, want none", got.Least, got.Most)
				}
				return
			}
			if got.Least == 0 || got.Least.Seconds() > c.want.Seconds()*c.off || got.Most.Seconds() < c.want.Seconds()/c.off || got.Most > steady*got.Least {
				t.Errorf("the estimate is %v to %v, the simulated drain takes %v", got.Least, got.Most, c.want)
			}
		})
	}
}
