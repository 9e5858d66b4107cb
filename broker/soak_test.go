package broker_test

import "flag"

var soakFactor = flag.Int("soak", 1, "how many times as many rounds the random tests run")

// soak returns how many rounds a random test runs: n, or as many times n as the flag says.
func soak(n int) int { return n * max(1, *soakFactor) }
