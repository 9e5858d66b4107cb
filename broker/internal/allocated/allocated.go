// Package allocated measures the memory that tests allocate.
package allocated

import "runtime"

// Bytes returns how many bytes the process allocates while f runs. Other goroutines and the runtime
// may contribute, so the limit of a test leaves room for them.
func Bytes(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc) //nolint:gosec // far below the largest int
}
