package serve

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestGarbageOf(t *testing.T) {
	for limit, want := range map[int64]int64{math.MaxInt64: 64 << 20, 1 << 30: 64 << 20, 512 << 20: 64 << 20, 128 << 20: 16 << 20} {
		if got := garbageOf(limit); got != want {
			t.Errorf("with %d bytes of memory %d of garbage, want %d", limit, got, want)
		}
	}
}

func TestPercentFor(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live    uint64
		garbage int64
		want    int
	}{
		{0, 64 * mib, mostPercent},
		{mib, 64 * mib, mostPercent},
		{16 * mib, 64 * mib, 400},
		{64 * mib, 64 * mib, 100},
		{1 << 40, 64 * mib, 100},
		{16 * mib, 16 * mib, 100},
		{math.MaxUint64, math.MaxInt64, 100},
	} {
		if got := percentFor(c.live, c.garbage); got != c.want {
			t.Errorf("with %d bytes live and %d of garbage GOGC is %d, want %d", c.live, c.garbage, got, c.want)
		}
	}
}

// The pace follows the live heap, and the environment's GOGC holds.
func TestPaceCollector(t *testing.T) {
	current := func() int {
		n := debug.SetGCPercent(leastPercent)
		debug.SetGCPercent(n)
		return n
	}
	before := current()
	defer debug.SetGCPercent(before)
	t.Setenv("GOGC", "")
	stop := paceCollector()
	runtime.GC()
	if got := current(); got <= leastPercent {
		t.Errorf("GOGC is %d with a small heap, want more than %d", got, leastPercent)
	}
	stop()
	assert.Equal(t, "GOGC is afterwards", current(), leastPercent)
	t.Setenv("GOGC", "150")
	debug.SetGCPercent(150)
	paceCollector()()
	assert.Equal(t, "GOGC is, but the environment has 150", current(), 150)
}
