// Package deadletter reads and converts dead letters: their filters and positions, scans of the
// topics in which they are, and the messages that a redrive makes of them. It writes nothing.
package deadletter
