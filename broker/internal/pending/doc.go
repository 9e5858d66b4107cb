// Package pending keeps the messages that are stored and in no queue yet: delayed messages, which
// wait for their delivery time, and half messages, which wait for the end of their transaction.
//
// Both are on disk only, in the order of their times. [Delayed] moves delayed messages to their
// queues. [Transactions] has producers asked about transactions that they did not end, and gives up
// those that no producer ends. Each has a task of the maintenance loop, due at the first time.
package pending
