// Package throttle decides when sends are rejected, and for how long (RocketMQ: sending retry and
// throttling, "Throttling"). It has the arithmetic and small state machines. It knows no topic,
// group or store, has no I/O and starts no goroutine. The caller passes the values and the time.
//
// Each kind of limit is one type. Each type returns its state as a [State]:
//
//	Backlog   of messages, bytes and age: "excessive unconsumed messages"  backlog.go
//	          shares of the clients after a throttle                       fair.go
//	Storage   free disk, compaction debt, write stalls: "high storage      storage.go
//	          pressure"
//	Cold      reads by groups "to consume from an earlier moment"          cold.go
//	Rate      messages and bytes a second                                  rate.go
//
// gate.go decides when a limit is reached and when it ends (hysteresis). pushback.go computes how
// long producers wait, from measured values: the rate at which a backlog drains ([Drain]), the age
// of a backlog and its change ([Ages], [Age]), and the rate of messages ([Flow]). Each of these is
// in the file of its name.
//
// Zero values are ready for use. Several goroutines may share a Drain, Flow or Age. The other types
// need a lock of the caller.
package throttle
