// Package powerloss lets a test lose the power of a broker in memory. Package broker sets both
// functions, so that its own names do not have them.
package powerloss

import "math/rand/v2"

var (
	// NewMemory returns a *broker.Memory that Lose works on. It is slower than others, because it
	// keeps synced and other data apart.
	NewMemory func() any

	// Lose replaces the content of a *broker.Memory of NewMemory by the content after a power
	// failure at this moment: all synced data, and a random part of the rest. The broker that has
	// the memory open no longer changes it; the caller closes that broker and opens the memory
	// again.
	Lose func(memory any, rnd *rand.Rand)
)
