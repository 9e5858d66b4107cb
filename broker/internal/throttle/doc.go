// Package throttle decides when sends are refused, and for how long (RocketMQ: sending retry and
// throttling, "Throttling"). It has the arithmetic and the small state machines; it knows no topic,
// group or store, takes no I/O and starts nothing. Whoever asks gives the numbers and the time.
//
// Each kind of limit is one type, and each tells how it is as a [State]:
//
//	Backlog   of messages, bytes and age: "excessive unconsumed messages"  backlog.go
//	          and then, the room that it leaves is shared by the clients   fair.go
//	Storage   free disk, compaction debt, write stalls: "high storage      storage.go
//	          pressure"
//	Cold      reads by groups "to consume from an earlier moment"          cold.go
//	Rate      messages and bytes a second                                  rate.go
//
// When one is reached, and when it ends, is in gate.go: hysteresis. How long
// producers are to wait is in pushback.go, from what is measured: how fast a
// backlog drains ([Drain]), how old it is and how fast that changes ([Ages] and
// [Age]), and how much passes ([Flow]), each in the file of its name.
//
// Zero values are ready for use. Only Drain, Flow and Age may be shared by
// goroutines; for the others the caller has a lock.
package throttle
