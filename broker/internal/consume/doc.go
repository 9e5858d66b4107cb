// Package consume is the state machine of one consumer group's consumption of one topic. It has no
// lock, no clock, no I/O and no goroutine. A [Progress] is the state; the caller passes the time,
// reads queues, and applies the [Effects] of each operation. The caller is engine.Subscription, in
// Subscription.apply.
//
// # The life of a message
//
//  1. A receive claims a queue ([Progress.Claim]), reads it, and moves the cursor over the messages
//     ([Progress.Admit]). Each message gets a lease, and is delivered.
//  2. In a FIFO group a message is held while an earlier message of its message group is unfinished
//     (joinGroup, promote).
//  3. Ready messages are delivered before new ones. A quarter of each receive is left for new
//     messages ([Progress.Begin]).
//  4. [Progress.Ack] ends the lease. Other settlements go through [Progress.Settle]: the state
//     table, then the attempts, then the new due time.
//  5. [Progress.Expire] applies invisible durations and retry intervals that are over.
//  6. The maximum of attempts is applied in one place: Policy.exhaustion in attempts.go.
//  7. After the last attempt the message departs as a dead letter (depart), or its message group
//     is parked (park) or blocked (block). The messages behind such a head are spilled to disk
//     (spillHeld), and read back when it is done ([Progress.NextFetch]).
//  8. [Progress.Departed] ends the lease of a dead letter that is on disk. [Progress.Returned]
//     takes the message back if the write failed.
//
// # Files
//
//   - state.go: states, events, and the table of changes
//   - attempts.go: the maximum of attempts and the action after it; retry intervals
//   - progress.go, heaps.go: cursors, leases, counts
//   - receive.go: which messages a receive gets; missing messages
//   - receipt.go: which receipt handles are valid; heartbeats of owners
//   - settle.go: acknowledgements, failures, changes of the invisible duration, releases
//   - expire.go: timeouts and retries that are due
//   - depart.go: dead letters and other messages that leave the topic
//   - messagegroup.go, park.go, spill.go: FIFO order; parked, blocked and spilled messages
//   - replay.go: receives that are repeated with their attempt ID
//   - rewind.go, removed.go: rewinds, and messages that retention or a purge removed
//   - restore.go: the state after a restart
//   - fate.go: where one message is, for people
//   - effects.go: the actions for the caller; audit.go: a check for tests
//
// Package consume uses the record types of package store, because the records are written
// unchanged. Separate types would repeat their fields, and need a copy for each write.
package consume
