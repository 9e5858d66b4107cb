// Package pending keeps the messages that are stored and in no queue yet: delayed messages, which
// wait for their delivery time, and half messages, which wait for the end of their transaction.
//
// Both are on disk only, in the order of their times. [Delayed] moves delayed messages to their
// queues. [Transactions] asks producers about unresolved transactions, and gives a transaction up
// after the last check. Each has a task of the maintenance loop, which is due when its first
// message is.
//
// Liveness: a stored message wakes its task for its own time, if that is earlier than the due time.
// Each step takes at most 256 messages and returns the time of the first remaining one. A task has
// a step only for a stored message, for the time of one, or after the pause of a failure.
package pending
