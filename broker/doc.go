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
//	Parked        given up with its message group, until somebody sends that on
//	Held          Ready, but an earlier message of its message group is not done
//
// This is how it moves. The first row whose condition holds counts. What is in
// no row cannot happen, and a request for it is refused.
//
//	from          event         to            condition
//	Ready         deliver       Inflight      -
//	Ready         dead-letter   Parked        exhausted: park
//	Ready         dead-letter   Ready         exhausted: block
//	Ready         dead-letter   DeadLetter    -
//	Inflight      ack           Commit        -
//	Inflight      fail          DeadLetter    exhausted: dead-letter
//	Inflight      fail          Parked        exhausted: park
//	Inflight      fail          WaitingRetry  -
//	Inflight      negative-ack  DeadLetter    exhausted: dead-letter
//	Inflight      negative-ack  Parked        exhausted: park
//	Inflight      negative-ack  WaitingRetry  -
//	Inflight      reconsume     Commit        -
//	Inflight      timeout       DeadLetter    exhausted: dead-letter
//	Inflight      timeout       Parked        exhausted: park
//	Inflight      timeout       WaitingRetry  push consumer
//	Inflight      timeout       Ready         -
//	Inflight      change        Inflight      -
//	Inflight      release       Ready         -
//	Inflight      dead-letter   Parked        exhausted: park
//	Inflight      dead-letter   WaitingRetry  exhausted: block
//	Inflight      dead-letter   DeadLetter    -
//	WaitingRetry  due           DeadLetter    exhausted: dead-letter
//	WaitingRetry  due           Parked        exhausted: park
//	WaitingRetry  due           Ready         -
//	WaitingRetry  dead-letter   Parked        exhausted: park
//	WaitingRetry  dead-letter   WaitingRetry  exhausted: block
//	WaitingRetry  dead-letter   DeadLetter    -
//	Parked        redrive       Ready         -
//	Parked        dead-letter   DeadLetter    -
//	Held          turn          Ready         -
//
// The events: deliver, a consumer receives it; ack, fail, change and
// dead-letter, what a consumer says; timeout, the invisible duration is over
// without an answer; release, it did not reach the consumer, or was given back;
// due, the retry interval is over; turn, the message before it in its message
// group is done; redrive, [Broker.RedriveParked], which is also the only one to
// make a dead letter of what is parked.
//
// Exhausted is a message whose attempts are at the group's maximum, and what
// follows is the group's [GroupConfig.OnExhausted]. Parking and blocking are for messages with a message
// group of FIFO groups. A consumer that asks for a dead letter before the last
// attempt gets it, whatever the group does after the last: the others go on. One that asks after it
// only tells, as RocketMQ's push consumers of FIFO groups do, that it has used them up by itself.
//
// [Broker.Rewind] makes any of these Ready anew, as if it had never been delivered.
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
