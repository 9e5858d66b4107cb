// Package house has no code. Its tests check the rules of this repository that no compiler knows:
// what lies where, who may import whom, what is exported, what is documented, and what tests may
// not do.
//
// The tests run in the root of the repository, so that every path in them is relative to it.
package house
