// Package deadletter reads and converts dead letters: their filters and positions, scans of the
// topics in which they are, and the properties of dead letters, redriven messages and messages of
// retry topics. It writes nothing.
package deadletter
