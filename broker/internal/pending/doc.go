// Package pending keeps the messages that are stored and in no queue yet: delayed messages, which
// wait for their delivery time, and half messages, which wait for the end of their transaction.
//
// Both are on disk only, in the order of their times. [Delayed] moves delayed messages to their
// queues. [Transactions] asks producers about unresolved transactions, and gives a transaction up
// after the last check. Each has a task of the maintenance loop, which is due when its first
// message is.
package pending
