package broker_test

import "flag"

var soakFactor = flag.Int("soak", 1, "how many times as many rounds the random tests run")

// soak returns the number of rounds of a random test: n times the flag, or a fifth of n without it.
// The step "random tests" of .ci/run has the other rounds.
func soak(n int) int {
	if *soakFactor > 1 {
		return n * *soakFactor
	}
	return max(1, n/5)
}
