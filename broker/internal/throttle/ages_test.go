package throttle

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestAges adds and removes messages at random. Ages must return the oldest message, exact to a
// tick, and must have few entries without messages.
func TestAges(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var a Ages
		var there []int64
		clock := int64(1_700_000_000) * int64(time.Second)
		for step := range 500 {
			switch {
			case len(there) == 0 || rnd.IntN(5) < 2+int(seed%2):
				clock += rnd.Int64N(2 * AgeTick)
				stored := clock
				if rnd.IntN(20) == 0 {
					stored -= rnd.Int64N(50 * AgeTick) // the clock was set back
				}
				a.Add(stored)
				there = append(there, stored)
			default:
				i := rnd.IntN(len(there))
				if rnd.IntN(3) > 0 {
					i = 0
				}
				a.Remove(there[i])
				there = slices.Delete(there, i, i+1)
			}
			empty := 0
			for _, e := range a.entries {
				if e.n == 0 {
					empty++
				}
			}
			if a.empty != empty { // otherwise each removal would copy all entries
				t.Fatalf("seed %d, step %d: %d entries without messages are counted, there are %d", seed, step, a.empty, empty)
			}
			if len(there) == 0 {
				if a.Oldest() != 0 || len(a.entries) != 0 {
					t.Fatalf("seed %d, step %d: %+v, want nothing", seed, step, a)
				}
				continue
			}
			if got, want := a.Oldest()/AgeTick, slices.Min(there)/AgeTick; got != want {
				t.Fatalf("seed %d, step %d: the oldest is of tick %d, want %d", seed, step, got, want)
			}
			if len(a.entries) > 2*len(there)+1 {
				t.Fatalf("seed %d, step %d: %d entries for %d messages", seed, step, len(a.entries), len(there))
			}
		}
	}
}
