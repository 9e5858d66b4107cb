// Package house has no code. Its tests check the rules of this repository that no compiler knows:
// the layout, the imports between packages, the exported names, the doc comments, and the limits of
// tests.
//
// The tests run in the root of the repository, so that every path in them is relative to it.
package house
