//go:build race

package broker_test

// costly is the factor by which the race detector makes a round of a test more expensive.
const costly = 5
