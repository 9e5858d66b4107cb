package broker

import (
	"math/rand/v2"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/internal/powerloss"
)

// A Memory is a data directory in memory. It outlives the brokers that are opened on it, one at a
// time, so that a test can restart a broker. Create it with [NewMemory] and pass it as
// Options.Memory.
type Memory struct{ fs vfs.FS }

// NewMemory returns an empty directory in memory.
func NewMemory() *Memory { return &Memory{fs: vfs.NewMem()} }

func init() { //nolint:gochecknoinits // a seam for tests of this module, without exported names
	powerloss.NewMemory = func() any { return &Memory{fs: vfs.NewCrashableMem()} }
	powerloss.Lose = func(memory any, rnd *rand.Rand) {
		m := memory.(*Memory)
		m.fs = m.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
	}
}
