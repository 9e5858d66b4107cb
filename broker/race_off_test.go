//go:build !race

package broker_test

// costly is 1 without the race detector.
const costly = 1
