// Package consume decides what a consumer group does with the messages of one topic. It has no
// lock, no clock, no I/O and no goroutine.
package consume
