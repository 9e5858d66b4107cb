package admission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
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
		assert.Equal(t, "after 500 resets, reading pauses for", paused(a), 0)
		for range 50 {
			a.Reset()
		}
		assert.Equal(t, "reading from another connection pauses for", paused(b), 0)
		assert.Equal(t, "after 50 resets more, reading pauses for", paused(a), 200*time.Millisecond)
		for range 100_000 {
			a.Reset()
		}
		assert.Equal(t, "after any number, one pause takes", paused(a), time.Second)
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
	assert.That(t, !l.Ended(), "a new connection has ended")
	assert.That(t, l.close() && !l.close() && l.Ended(), "a connection ends once")
	var none *Link
	none.Opened()
	none.Begun()
	assert.That(t, none.Limit() == nil, "an unknown connection has a limit")
}
