package throttle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestPaceOfSteadyDrains checks that the rate of a steady drain is right within a factor of two at
// any moment, and soon 0 after the drain has stopped. The drains have from one message in 100 s to
// 100 000 messages per second. The consumers acknowledge single messages, whole batches, or the
// messages of a batch one by one.
func TestPaceOfSteadyDrains(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	exp := func(from, to float64) float64 { return from * math.Exp(rnd.Float64()*math.Log(to/from)) }
	for range 1000 {
		rate, batch := exp(0.01, 100_000), int(exp(1, 1001))
		every := float64(batch) / rate // seconds
		spread := 0.0                  // seconds in which the messages of a batch are acknowledged one by one
		if rnd.IntN(2) == 0 {
			spread = min(rnd.Float64()*every, 4)
		}
		what := fmt.Sprintf("%g a second, %d each %g s, in %g s", rate, batch, every, spread)
		var p pace
		start := time.Now()
		at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
		steps := min(4+int(1/every), 200)
		if every < 0.01 {
			steps = 4 + int(0.3/every)
		}
		check := func(i int, seconds float64) {
			t.Helper()
			got, bytes := p.rate(at(seconds))
			if i >= 3 && seconds > 0.25 && (got < rate/2 || got > rate*2 || math.Abs(bytes/got-7) > 0.001) {
				t.Fatalf("%s: after %g s, in step %d, it is %g messages and %g bytes a second", what, seconds, i, got, bytes)
			}
		}
		last := 0.0
		for i := range steps {
			parts := 1
			if spread > 0 {
				parts = batch
			}
			for j := range parts {
				last = float64(i)*every + spread*float64(j)/float64(parts)
				p.add(float64(batch/parts), float64(batch/parts)*7, true, at(last))
				if j < 3 || j%100 == 0 {
					check(i, last)
				}
			}
			for range 3 {
				check(i, last+rnd.Float64()*(float64(i+1)*every-last))
			}
		}
		before, _ := p.rate(at(last))
		for s := last; ; s += max(every, 5) / 4 {
			got, _ := p.rate(at(s))
			if got > before*1.1 { // the steps before were not all alike
				t.Fatalf("%s: the rate grows from %g to %g once it has stopped", what, before, got)
			}
			if before = got; got == 0 {
				break
			}
			if s > last+5*max(every, 5) {
				t.Fatalf("%s: %g s after it stopped the rate is %g", what, s-last, got)
			}
		}
	}
}

// TestPaceOfRandomDrains checks drains with steps at random moments: nine of ten rates are right
// within a factor of three.
func TestPaceOfRandomDrains(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, rate := range []float64{0.01, 0.3, 10, 1000} {
		var p pace
		now, wrong := time.Now(), 0
		for range 10_000 {
			now = now.Add(time.Duration(rnd.ExpFloat64() / rate * float64(time.Second)))
			p.add(1, 1, true, now)
			if got, _ := p.rate(now.Add(time.Duration(rnd.Float64() / rate * float64(time.Second)))); got < rate/3 || got > rate*3 {
				wrong++
			}
		}
		if wrong > 1000 {
			t.Errorf("at %g a second it is wrong %d times of 10 000", rate, wrong)
		}
	}
}

// TestPaceThatChanges checks that earlier rates and pauses soon stop to have an effect.
func TestPaceThatChanges(t *testing.T) {
	for name, c := range map[string]struct {
		before float64 // a second
		idle   bool
		pause  time.Duration
		after  time.Duration // from then on it is right
	}{
		"first of all":           {},
		"idle for a while":       {before: 1000, idle: true, pause: 15 * time.Second},
		"idle for long":          {before: 1000, idle: true, pause: 15 * time.Hour},
		"stopped":                {before: 1000, pause: time.Hour},
		"slower before":          {before: 0.1, after: time.Minute},
		"much slower before":     {before: 0.01, after: 15 * time.Minute},
		"faster before":          {before: 100_000, after: 30 * time.Second},
		"slower, then stopped":   {before: 0.1, pause: time.Hour},
		"stopped for a short":    {before: 10, pause: 10 * time.Second, after: 20 * time.Second},
		"idle while it was slow": {before: 0.1, idle: true, pause: time.Hour, after: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			var p pace
			now := time.Now()
			if c.before > 0 {
				for i := range 100 {
					p.add(1, 1, !c.idle || i < 99, now)
					now = now.Add(time.Duration(float64(time.Second) / c.before))
				}
			}
			now = now.Add(c.pause)
			start := now
			for now.Sub(start) < c.after+time.Minute {
				p.add(1, 1, true, now)
				now = now.Add(100 * time.Millisecond)
				if got, _ := p.rate(now); now.Sub(start) > c.after+500*time.Millisecond && (got < 5 || got > 20) {
					t.Fatalf("%v after it became 10 a second it is %g", now.Sub(start), got)
				}
			}
		})
	}
}

// TestDrainRate checks that the rate of a steady drain is right within a factor of two, from its
// first second on.
func TestDrainRate(t *testing.T) {
	for _, rate := range []int{10, 1000} {
		var d Drain
		start := time.Now()
		for i := 1; i < 60*rate; i++ {
			now := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
			d.Add(1, 100, true, now)
			if got, bytes := d.Rate(now); i > rate && (got < float64(rate)/2 || got > float64(rate)*2 || bytes < got*99 || bytes > got*101) {
				t.Fatalf("after %v the rate is %g messages and %g bytes, want %d and %d", now.Sub(start), got, bytes, rate, rate*100)
			}
		}
		if got, _ := d.Rate(start.Add(time.Hour)); got != 0 {
			t.Errorf("after an hour of nothing the rate is %g", got)
		}
	}
}
