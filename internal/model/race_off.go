//go:build !race

package model

// costly is 1 without the race detector.
const costly = 1
