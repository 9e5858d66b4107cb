package sniff

import (
	"testing"
	"testing/synctest"
	"time"
)

// Reading pauses while too many handlers have not begun, and goes on when they begin, when their
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
