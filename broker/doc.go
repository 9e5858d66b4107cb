// Package broker is the reference engine: topics with queues, consumer groups,
// leases, the retry ladder, dead letters, and throttling by backlog. It knows
// no wire: package broker/server puts gRPC and HTTP in front of it, and a
// [*Broker] is a transport.Transport by itself.
//
// # State of a message
//
// A message has, for each consumer group, one of the states of RocketMQ's
// consumption retry (seed 000):
//
//	Ready         waits to be delivered
//	Inflight      delivered; the group has not answered
//	WaitingRetry  consuming failed; delivered again when the retry interval is over
//	Commit        consumed; ends
//	DeadLetter    given up after the last attempt; ends, and a copy is in %DLQ%group
//
// # Promises
//
// A send is answered when the message is on disk; one fsync serves all that
// wait. A delivery's attempt number is written before the delivery is handed
// out. What was answered survives the end of the process at any moment. In
// memory (no Dir) the same code runs on a file system in memory.
//
// A message whose ID its topic stored within the duplicate window is answered
// with the first receipt and not stored again. A message with a delivery time is not delivered before it.
//
// A half message, of a topic of type TRANSACTION, is on disk when its send is answered, and
// delivered to nobody before its transaction is committed; then it is, as any other message. A producer that does not
// end a transaction is asked about it (see [TransactionConfig]).
//
// A message is delivered at least once: again if its invisible time ends
// before it is acknowledged, never earlier.
package broker
