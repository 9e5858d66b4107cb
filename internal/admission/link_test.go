package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

// Reading pauses while too many handlers have not begun. It continues when they begin, when their
// connection ends, or after a while.
func TestCrowd(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(l *Link)
		paused time.Duration
	}{
		{"handlers do not begin", func(*Link) {}, pause},
		{"one begins", func(l *Link) { l.Begun() }, 10 * time.Millisecond},
		{"the connection ends", func(l *Link) { l.close() }, 10 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			var all crowd
			a, b := &Link{crowd: &all}, &Link{crowd: &all}
			for range mostOpened {
				a.Opened()
			}
			began := time.Now()
			if all.wait(); time.Since(began) != 0 {
				t.Errorf("%s: with %d streams, reading pauses", c.name, mostOpened)
			}
			b.Opened()
			time.AfterFunc(10*time.Millisecond-1, func() { c.change(b) })
			if all.wait(); time.Since(began) != c.paused {
				t.Errorf("%s: reading pauses for %v, want %v", c.name, time.Since(began), c.paused)
			}
			b.close()
			b.Opened() // after its end, nothing counts
			b.Begun()
			for range mostOpened {
				a.Begun()
			}
			if n := all.opened.Load(); n != 0 {
				t.Errorf("%s: at the end %d streams are counted", c.name, n)
			}
		})
	}
}

// Reading from a connection whose client cancels streams all the time pauses: beyond 500 it reads
// on only as fast as 250 a second. Other connections are not held up.
func TestResetsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all crowd
		a, b := &Link{crowd: &all}, &Link{crowd: &all}
		paused := func(l *Link) time.Duration {
			began := time.Now()
			l.wait()
			return time.Since(began)
		}
		for range 500 {
			a.Reset()
		}
		if d := paused(a); d != 0 {
			t.Errorf("after 500 resets, reading pauses for %v", d)
		}
		for range 50 {
			a.Reset()
		}
		if d := paused(b); d != 0 {
			t.Errorf("reading from another connection pauses for %v", d)
		}
		if d := paused(a); d != 200*time.Millisecond {
			t.Errorf("after 50 resets more, reading pauses for %v, want 200ms", d)
		}
		for range 100_000 {
			a.Reset()
		}
		if d := paused(a); d != time.Second {
			t.Errorf("after any number, one pause takes %v, want a second", d)
		}
		var none *Link
		none.Reset()
	})
}

// A flood of streams on one connection holds up that connection alone.
func TestCrowdHoldsUpItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all crowd
		a, b := &Link{crowd: &all}, &Link{crowd: &all}
		for range mostOpened + 1 {
			a.Opened()
		}
		began := time.Now()
		if b.wait(); time.Since(began) != 0 {
			t.Errorf("a connection without streams pauses for %v", time.Since(began))
		}
		if a.wait(); time.Since(began) != pause {
			t.Errorf("the connection with the streams pauses for %v, want %v", time.Since(began), pause)
		}
	})
}

func TestEndedLink(t *testing.T) {
	l := &Link{crowd: &crowd{}}
	if l.Ended() {
		t.Error("a new connection has ended")
	}
	if !l.close() || l.close() || !l.Ended() {
		t.Error("a connection ends once")
	}
	var none *Link
	none.Opened()
	none.Begun()
	if none.Limit() != nil {
		t.Error("an unknown connection has a limit")
	}
}
