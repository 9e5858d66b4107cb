package broker

import "github.com/cockroachdb/pebble/v2/vfs"

// A Memory is a data directory in memory. It outlives the brokers that are opened on it, one at a
// time, so that a test can restart a broker. Create it with [NewMemory] and pass it as
// Options.Memory.
type Memory struct{ fs vfs.FS }

// NewMemory returns an empty directory in memory.
func NewMemory() *Memory { return &Memory{fs: vfs.NewMem()} }
