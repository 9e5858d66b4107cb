// Package verdict decides about the end of a delivery: what a failure means (Read, Judge, Again),
// which step follows each attempt to settle (State), and how the delivery ended (End). It has no
// clock, locks or goroutines.
package verdict
