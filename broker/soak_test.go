package broker_test

import "flag"

var soakFactor = flag.Int("soak", 1, "how many times as many rounds the random tests run")

// soak returns the number of rounds of a random test: n times the flag.
func soak(n int) int { return n * max(1, *soakFactor) }
