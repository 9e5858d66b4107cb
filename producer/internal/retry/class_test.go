package retry

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
)

// Each class of errors has a decision and a delay. A new class fails the test until both are
// decided.
func TestEveryClass(t *testing.T) {
	decided := map[tidegate.Class]Decision{
		tidegate.ClassOK:        {},
		tidegate.ClassThrottled: {Delay: time.Second, Source: FromBackoff},
		tidegate.ClassTransient: {Delay: time.Minute, Source: FromPacing},
		tidegate.ClassPermanent: {Stop: Permanent},
		tidegate.ClassCancelled: {Stop: Closed},
	}
	l := &Limits{Bounds: &Bounds{Pacing: backoff.Steps{time.Minute}}, MaxAttempts: 9, Backoff: backoff.Steps{time.Second}}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		want, ok := decided[c]
		if !ok {
			t.Errorf("%v is not decided", c)
			continue
		}
		want.Class = c
		in := Inputs{Class: c, Attempts: 1, MaxAttempts: l.MaxAttempts, TransportClosed: true}
		if c == tidegate.ClassThrottled {
			in.Throttles = 1
		}
		in.Draw(l, &Draws{})
		got := Decide(in)
		assert.That(t, got == want, "%v: %+v, want %+v", c, got, want)
	}
}
