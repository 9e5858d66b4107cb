package broker_test

import "flag"

var soakFactor = flag.Int("soak", 0, "how many times all their rounds the random tests run; 0 for a fifth of them")

// soak returns the number of rounds of a random test: n times the flag, or a fifth of n without it.
// The step "random tests" of .ci/run has all rounds.
func soak(n int) int {
	if *soakFactor > 0 {
		return n * *soakFactor
	}
	return max(1, n/5)
}
