package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"math"

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
