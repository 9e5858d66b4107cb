package throttle

import (
	"testing"
	"time"
)

// TestAgeLook checks that Look calls oldest as often as the limit needs, and not more often.
func TestAgeLook(t *testing.T) {
	for _, c := range []struct{ limit, every time.Duration }{
		{time.Second, 20 * time.Millisecond}, {time.Hour, 100 * time.Millisecond}, {time.Millisecond, time.Millisecond},
	} {
		var a Age
		start := time.Now()
		looks := 0
		stored := start.Add(-time.Hour).UnixNano()
		look := func(now time.Time) { a.Look(now, c.limit, func() int64 { looks++; return stored }) }
		if a.At(start) != 0 {
			t.Errorf("one that was never looked at is %v", a.At(start))
		}
		look(start)
		look(start.Add(c.every - 1))
		if looks != 1 || a.At(start.Add(time.Second)) != time.Hour+time.Second {
			t.Errorf("limit %v: looked at %d times within %v, it is %v", c.limit, looks, c.every, a.At(start.Add(time.Second)))
		}
		look(start.Add(c.every))
		if looks != 2 {
			t.Errorf("limit %v: looked at %d times in %v", c.limit, looks, c.every)
		}
		if stored = 0; a.At(start) == 0 {
			t.Error("the age changes between two calls")
		}
		if look(start.Add(time.Minute)); a.At(start.Add(time.Minute)) != 0 {
			t.Errorf("of nothing it is %v", a.At(start.Add(time.Minute)))
		}
	}
}

// TestAgeLookWithinLook checks that oldest may call Look.
func TestAgeLookWithinLook(t *testing.T) {
	var a Age
	now := time.Now()
	a.Look(now, time.Second, func() int64 {
		a.Look(now, time.Second, func() int64 { t.Error("two look at once"); return 0 })
		return 1
	})
}

// TestAgeFall checks that the fall is the progress of the consumers per second, less one second.
func TestAgeFall(t *testing.T) {
	for _, speed := range []float64{0, 0.5, 1, 3, 100} { // seconds of stored time a second
		var a Age
		start := time.Now()
		now := start
		for step := range 600 { // a minute
			now = start.Add(time.Duration(step) * 100 * time.Millisecond)
			stored := start.Add(-time.Hour).Add(time.Duration(speed * float64(now.Sub(start))))
			a.Look(now, time.Hour, stored.UnixNano)
			if got := a.Fall(); step > 10 && (got < speed-1-speed*0.01 || got > speed-1+speed*0.01) {
				t.Fatalf("at a speed of %g the age falls by %g after %v", speed, got, now.Sub(start))
			}
		}
		a.Look(now.Add(time.Second), time.Hour, func() int64 { return 0 })
		if got := a.Fall(); got != -1 {
			t.Errorf("with nothing there the age falls by %g", got)
		}
	}
}
