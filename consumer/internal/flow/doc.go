// Package flow decides what a consumer receives, holds and handles next: how many messages a
// receive asks for (Credits), when a queue is asked again (Reminders), how long a delivery belongs
// to the consumer (Lease), what is due (Schedule), which message in hand comes next (Lanes), and
// the order of a message group (Lines). It has no clock, locks or goroutines.
package flow
