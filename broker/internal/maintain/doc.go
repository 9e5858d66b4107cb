// Package maintain runs the work that a broker does beside the requests of its clients: it moves
// delayed messages that are due, checks transactions, removes old messages.
//
// Each kind of work is a [Task] of one [Loop]. A task has a due time, which anyone can bring
// forward, and a step, which does a small, bounded piece of work and returns the next due time. The
// loop has one timer, set to the first due time. Idle tasks have no goroutine. A task that is due
// has one of its own until nothing is due for it, so a slow step delays only its own task.
package maintain
