// Package broker is the reference engine: topics with queues, consumer groups,
// leases, the retry ladder, dead letters, and throttling. It knows
// no wire: package broker/server puts gRPC and HTTP in front of it, and a
// [*Broker] is a transport.Transport by itself.
//
// # State of a message
//
// A message has, for each consumer group, one of the states of RocketMQ's
// consumption retry (RocketMQ: consumption retry):
//
//	Ready         waits to be delivered
//	Inflight      delivered; the group has not answered
//	WaitingRetry  consuming failed; delivered again when the retry interval is over
//	Commit        consumed; ends
//	DeadLetter    given up after the last attempt; ends, and a copy is where dead letters go
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
//	Inflight      snooze        WaitingRetry  -
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
//	Held          promote       Ready         -
//
// The events: deliver, a consumer receives it; ack, fail, change and
// dead-letter, what a consumer says; timeout, the invisible duration is over
// without an answer; release, it did not reach the consumer, or was given back;
// due, the retry interval is over, or the snooze; promote, the message before it in its message
// group is done; redrive, [Broker.RedriveParked], which is also the only one to
// make a dead letter of what is parked.
//
// Exhausted is a message whose attempts are at the group's maximum, and what follows is the group's
// [GroupConfig.OnExhausted]. Parking and blocking are for messages with a message group of FIFO
// groups. A consumer that asks for a dead letter before the last attempt gets it, whatever the
// group does after the last: the others go on. One that asks after it only tells, as RocketMQ's
// push consumers of FIFO groups do, that it has used them up by itself.
//
// [Broker.Rewind] makes any of these Ready anew, as if it had never been delivered.
//
// # Promises
//
// A send is answered when the message is on disk; one fsync serves all that
// wait. An acknowledgement, a failure, a change of the invisible duration, and a
// message that was given up, are on disk before they are answered; so is the attempt
// number of every delivery after the first before it is handed out. That of a first
// delivery is on disk within 20 ms: a crash or power failure before that can have a message
// delivered as attempt 1 again. In memory (no Dir) the same code runs on a file system in memory.
//
// A message is delivered at least once: again if its invisible time ends
// before it is acknowledged, never earlier. A message whose ID its topic stored within the
// duplicate window (2 minutes) is answered with the first receipt and not stored again.
//
// # Retries
//
// A push consumer's message that failed or timed out comes again after the step of the group's
// ladder for its attempt (10 s to 2 h, [GroupConfig].Retry), or the fixed interval of a FIFO group;
// a simple consumer's when its invisible duration is over. Attempts begin with 1, and after
// MaxAttempts (17: one delivery and 16 retries) a message becomes a dead letter, unless a FIFO
// group chose otherwise. All of it can be changed while in use, and holds for messages under way.
//
// # FIFO
//
// A group with [GroupConfig].FIFO has one message of a message group at a time: those after it wait
// while it is in flight or waits for its retry, and other message groups flow. Topics of type FIFO
// keep the messages of one message group in one queue, in the order in which they were sent, while
// the number of queues stays: where one send has several, and one is refused for now, those behind
// it are too.
//
// # Dead letters
//
// They go to the topic %DLQ%group, which is made for the first and can be received from as any
// other: with the same message ID, body and properties, and properties that begin with DLQ_ and say
// where it came from, after how many attempts, and why. They are kept for ever unless the topic
// says otherwise. A dead letter that fails in the group's own %DLQ%group stays there and is not
// delivered to the group again. Address settings and retry topics have topics of their own for dead
// letters; [Group].DeadLetterTopics lists all that there are.
//
// # Address settings
//
// [AddressSettings] are Artemis's redelivery settings (Artemis: undelivered messages), by patterns
// that match topics: delay with multiplier and chance, delivery attempts, dead-letter address and
// automatic dead-letter queues, expiry. Where one about redelivery matches a topic, they hold in
// place of the groups' ladder and MaxAttempts. Each field comes from the most specific pattern that
// has it.
//
// # Retry topics
//
// A group with [RetryTopicConfig].Enabled may answer with [Broker.ReconsumeLater] (TDMQ for Pulsar:
// retry and dead letters): the message is acknowledged and sent anew to a topic of the group's,
// from which each receive from the original topic takes too. After MaxRetries (16) it goes to the
// group's dead letter topic. [Broker.NegativeAck] has the same message delivered again after a
// delay (1 minute), with a maximum of its own.
//
// # Delayed messages
//
// A message with a delivery time, at most 24 hours ahead, of a topic of type DELAY, is not
// delivered before it. Until then it is on disk only, and [Broker.Recall] takes it back by the
// handle in its receipt.
//
// # Transactions
//
// A half message, of a topic of type TRANSACTION ([Broker.SendHalf]), is on disk when its send is
// answered, and delivered to nobody before [Broker.EndTransaction] commits it; then it is as any
// other message. A producer that does not end a transaction is asked about it, by default after 6 s
// and then each 30 s, 15 times ([TransactionConfig]); then the transaction is given up and its
// message is a dead letter in [AbandonedTransactions].
//
// # Filters
//
// A receive may ask for some messages only: by tag ("*", "a", "a || b") or by an expression of
// SQL92 over properties. What does not match is passed over for the group, be it new or ready
// again, and leaves its backlog. An expression that is wrong is refused with 40010 and the
// position.
//
// # Throttling
//
// Sends are refused with 530 TOO_MANY_REQUESTS, and with the time after which to come back where it
// can be told: by the backlog of a topic or group in messages, bytes and age ([Limit]), by the rate
// of a topic ([Rate]) and of a client ([Quota]), and by the state of the storage ([Pressure]). A
// backlog's limit ends at 80 %, and then the clients that send share what drains. Receiving is
// never throttled: it is the cure. [Broker.Throttles] tells which limits refuse sends now, and
// since when; [Broker.SetLimits] changes those of the whole broker.
//
// # Retention
//
// Messages are removed after 72 hours, above a size, or once every group is done with them, as
// their topic says ([Retention]); [Broker.PurgeTopic] removes all at once, and the disk is given
// back. A group that loses messages it has not consumed is told in the log and in
// [Subscription].Overtaken. What is in flight or waits for a retry stays.
//
// # A disk that is full or damaged
//
// A write that finds no room has all sends refused and is tried again until there is room;
// consumers go on, on a reserve. So that it stays theirs, commits are refused meanwhile, and
// delayed messages that come due wait. A message that is damaged is logged, counted and passed
// over. Damaged settings, or logs of a broker that was closed in order and have changed since,
// refuse to open.
//
// # Access
//
// The engine asks nobody who they are. Keys, rules by topic and group, and TLS are those of package
// broker/server.
package broker
