package throttle

import (
	"fmt"
	"testing"
	"time"
)

func TestFairnessTake(t *testing.T) {
	now := time.Now()
	t.Run("alone", func(t *testing.T) {
		var f fairness
		for range 1000 {
			if _, ok := f.take("a", 1, 0, 0, now); !ok {
				t.Fatal("a single client has to share")
			}
		}
	})
	t.Run("space, then rate", func(t *testing.T) {
		var f fairness
		f.see("a", now)
		f.see("b", now)
		n := 0
		for ; n < 100; n++ {
			wait, ok := f.take("a", 1, 40, 4, now)
			if !ok {
				if wait != 500*time.Millisecond {
					t.Errorf("the wait for the next token is %v, want 500ms", wait)
				}
				break
			}
		}
		if n != 10 { // a quarter of the room
			t.Errorf("%d at once, want 10", n)
		}
		if _, ok := f.take("b", 1, 40, 4, now); !ok {
			t.Error("the share of another client was used")
		}
		if _, ok := f.take("a", 1, 40, 4, now.Add(500*time.Millisecond)); !ok {
			t.Error("no token after the returned wait")
		}
	})
	t.Run("a client that left does not count", func(t *testing.T) {
		var f fairness
		f.see("a", now)
		f.take("b", 1, 2, 1, now)
		later := now.Add(fairWindow + 2*time.Second)
		f.take("b", 1, 2, 1, later)
		if len(f.clients) != 1 {
			t.Errorf("%d clients", len(f.clients))
		}
	})
	t.Run("bounded", func(t *testing.T) {
		var f fairness
		for i := range 3 * maxSharers {
			f.see(fmt.Sprint(i), now)
		}
		if len(f.clients) > maxSharers+1 {
			t.Errorf("%d clients have entries of their own", len(f.clients))
		}
	})
}
