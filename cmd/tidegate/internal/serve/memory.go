package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// goPart is the part of the memory of the process for Go. The store uses memory that Go does not
// count, and the system caches files in the rest.
const goPart = 0.8

// limitMemory sets the memory limit of Go to four fifths of the memory of the process, unless
// GOMEMLIMIT in the environment sets it. Go then collects garbage before the system ends the
// process, and returns memory. The budgets of the server are parts of this limit.
func limitMemory(logger *slog.Logger) {
	limit, err := memlimit.Set(memlimit.WithProvider(memory), memlimit.WithRatio(goPart))
	switch {
	case err != nil:
		logger.Warn("memory size unknown, so the garbage collector has no limit; set GOMEMLIMIT", "error", err)
	case limit != math.MaxInt64:
		logger.Info("memory limit of Go set", "bytes", limit)
	}
}

// memory returns how many bytes of memory the process may have: those of its cgroup, or of the
// machine if that has less.
func memory() (uint64, error) { return smallest(memlimit.FromCgroup, memlimit.FromSystem) }

// smallest returns the least of the limits that are known.
func smallest(limits ...memlimit.Provider) (uint64, error) {
	least, errs := uint64(math.MaxUint64), make([]error, 0, len(limits))
	for _, limit := range limits {
		n, err := limit()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		least = min(least, n)
	}
	if len(errs) == len(limits) {
		return 0, fmt.Errorf("neither the cgroup nor the system has a memory size: %w", errors.Join(errs...))
	}
	return least, nil
}

const (
	// mostGarbage is how many bytes Go allocates between two collections at least, where there is
	// enough memory. The broker has some 15 MiB of live objects: Go's default would collect garbage
	// after as much, which took up to a fifth of the broker's processor time. The price is some
	// 50 MiB of memory under load.
	mostGarbage = 64 << 20

	// garbagePart is the part of Go's memory that garbage may take by this rule.
	garbagePart = 8

	// leastPercent is Go's default, which holds where more is live than garbage is allowed.
	leastPercent = 100
	mostPercent  = 1600
)

// garbageOf returns how many bytes of garbage are allowed if Go may use so many bytes of memory.
func garbageOf(limit int64) int64 { return min(mostGarbage, limit/garbagePart) }

// percentFor returns the GOGC with which Go collects after so many bytes of garbage, where live
// bytes stay.
func percentFor(live uint64, garbage int64) int {
	percent := float64(garbage) * 100 / float64(max(live, 1))
	return int(min(max(percent, leastPercent), mostPercent))
}

// A collectorPace adapts GOGC to the live heap after each collection.
type collectorPace struct {
	garbage int64

	mu      sync.Mutex
	percent int  // guarded by mu; set last
	stopped bool // guarded by mu
}

// paceCollector has Go collect garbage less often while the heap is small, within the limit of its
// memory. GOGC in the environment holds instead. stop restores Go's default.
func paceCollector() (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		limit = mostGarbage * garbagePart
	}
	p := &collectorPace{garbage: garbageOf(limit), percent: leastPercent}
	p.set()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopped = true
		debug.SetGCPercent(leastPercent)
	}
}

// set sets GOGC, now and after the next collection.
func (p *collectorPace) set() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	// Setting it stops the program for a moment, so small differences are left alone.
	if want := percentFor(live[0].Value.Uint64(), p.garbage); want > p.percent*5/4 || want < p.percent*4/5 {
		p.percent = want
		debug.SetGCPercent(want)
	}
	sentinel := new([16]byte) // unreachable, so the next collection finds it
	runtime.AddCleanup(sentinel, (*collectorPace).set, p)
}
