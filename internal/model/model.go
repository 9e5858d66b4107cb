// Package model runs the random models of tests. A model is a function that makes random steps with
// the part under test and checks it after each of them.
package model

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var (
	seedFlag = flag.Uint64("model.seed", 0, "run the random model with this seed only")
	factor   = flag.Float64("model.factor", 1, "run this many times the sequences of the random model")
	all      = flag.Bool("model.all", false, "run all rounds of random tests, not a fifth of them")
)

// Run runs a model with so many random seeds, multiplied by the flag -model.factor, until one
// fails. It logs the command that repeats the failed seed. With the flag -model.seed it runs that
// seed alone.
func Run(t *testing.T, sequences int, run func(t *testing.T, r *rand.Rand)) {
	t.Helper()
	if *seedFlag != 0 {
		sequences = 1
	} else {
		sequences = max(1, int(float64(Rounds(sequences))**factor))
	}
	for n := 0; n < sequences && !t.Failed(); n++ {
		seed := *seedFlag
		if seed == 0 {
			seed = rand.Uint64()
		}
		once(t, seed, run)
	}
}

// Rounds returns a fifth of n, or n with the flag -model.all: n is the number of rounds of a random
// test, or the number of messages of a large one. The step "random tests" of .ci/run runs the
// packages that use it with all rounds.
func Rounds(n int) int {
	if *all {
		return n
	}
	return max(1, n/5)
}

func once(t *testing.T, seed uint64, run func(t *testing.T, r *rand.Rand)) {
	t.Helper()
	defer func() { // also after t.Fatal
		if t.Failed() {
			t.Logf("repeat in the directory of the test with: go test -run '^%s$' -model.seed %d", t.Name(), seed)
		}
	}()
	run(t, rand.New(rand.NewPCG(seed, 0)))
}
