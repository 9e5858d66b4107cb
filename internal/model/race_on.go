//go:build race

package model

// costly is the factor by which the race detector makes a round of a test more expensive.
const costly = 5
