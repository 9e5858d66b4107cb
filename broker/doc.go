// Package broker is the engine of the tidegate broker: topics with queues, consumer groups, leases,
// the retry schedule, dead letters and throttling. It has no wire protocol: package broker/server
// adds gRPC and HTTP. A [*Broker] is also a transport.Transport, for producers and consumers in the
// same process.
//
// The five-digit numbers in this documentation, such as 40013, are RocketMQ's codes, which errors
// have in tidegate.Error.Code.
//
// # State of a message
//
// A message has one state for each consumer group. The names are RocketMQ's (RocketMQ: consumption
// retry); Parked and Held are additions:
//
//	Ready         can be delivered
//	Inflight      delivered; the group has not responded
//	WaitingRetry  consuming failed; the message waits for its retry interval
//	Commit        consumed; final
//	DeadLetter    the attempts are exhausted; final, and a copy is in the dead letter topic
//	Parked        the attempts are exhausted; the message group waits for an operator
//	Held          like Ready, but an earlier message of its message group is unfinished
//
// The next table has all changes of state. The first row whose condition holds applies. "exhausted:
// park" means that the message is exhausted, as defined below, and that OnExhausted of the group is
// park. The broker rejects a request for a change that has no row.
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
// The events:
//
//   - deliver: a consumer receives the message
//   - ack, fail, negative-ack, snooze, reconsume, change, dead-letter: a request of a consumer
//   - timeout: the invisible duration ended without a response
//   - release: the message did not reach the consumer, or the consumer returned it
//   - due: the retry interval or the snooze ended
//   - promote: the message before it in its message group is finished
//   - redrive: an operator redrives the message group ([Broker.RedriveParked])
//
// RedriveParked is also the only source of a dead-letter event for a parked message.
//
// A message is exhausted if its attempts have reached the maximum of the group or address; negative
// acknowledgements have a maximum of their own. [settings.Group].OnExhausted then sets the next
// state: dead-letter, block or park. Block and park apply only to messages with a message group, in
// FIFO groups. If a consumer requests a dead letter before the last attempt, the message becomes a
// dead letter with any OnExhausted, and its successors continue. After the last attempt OnExhausted
// applies to such a request too, because RocketMQ's push consumers of FIFO groups make the retries
// themselves and report exhausted attempts with this request.
//
// [Broker.Rewind] makes messages of any state Ready again, as if they had never been delivered.
//
// # Promises
//
// The broker acknowledges a send when the message is on disk. One fsync serves all waiting sends.
// Acknowledgements, failures, changes of the invisible duration and dead letters are on disk before
// the response. The attempt number of each delivery after the first is on disk before the message
// is handed out. The attempt number of a first delivery is synced to disk about 20 ms later, so
// after a crash or power failure the message can be delivered with attempt 1 again. Without a data
// directory the same code runs on a file system in memory.
//
// A message is delivered at least once. If its invisible duration ends before the acknowledgement,
// the broker delivers it again. Until then the group receives it only once, unless a consumer
// returns it or reports a failure. If the ID of a message was stored in its topic within the
// duplicate window (2 minutes by default), the broker returns the first receipt and does not store
// the message again.
//
// # Retries
//
// The first attempt is 1. After a failure or timeout of a push consumer the broker delivers the
// message again when its retry interval has ended: the step of the group's retry schedule for this
// attempt (10 s to 2 h, [settings.Group].Retry), or the fixed interval of a FIFO group. A message
// of a simple consumer is delivered again when its invisible duration has ended. After MaxAttempts
// (17: one delivery and 16 retries) the message becomes a dead letter, unless the group is FIFO and
// its OnExhausted is block or park. All these settings can be changed while the group is in use. A
// change also applies to messages in flight.
//
// # FIFO
//
// A group with [settings.Group].FIFO receives one message of a message group at a time. The
// successors of that message wait while it is in flight or waits for its retry; other message
// groups continue. Topics of type FIFO keep the messages of one message group in one queue, in the
// order of their sends, as long as the number of queues does not change. If a limit rejects one
// message of a send, it also rejects the later messages of the same message group.
//
// # Dead letters
//
// The dead letters of a group are in the topic %DLQ%group: for example, those of group billing are
// in %DLQ%billing. The first dead letter creates the topic. Consumers can receive from it as from
// any topic. A dead letter has the ID, body and properties of the message, and further properties
// (DLQ_...) with its origin, its attempts and the reason. Retention does not remove it unless the
// topic is configured so. A dead letter that fails again in the group's own %DLQ%group stays there
// and is not delivered to the group again. Address settings and retry topics use other topics for
// dead letters; [status.Group].DeadLetterTopics lists all of them.
//
// [Broker.RedriveDeadLetters] sends dead letters back: to their topics, and therefore to all groups
// of these topics, or to the failed group alone, through the topic %RETRY%group_topic.
//
// # Address settings
//
// [settings.Address] are the redelivery settings of Apache ActiveMQ Artemis (Artemis: undelivered
// messages) for the topics that a pattern matches: delays with multiplier and random part, delivery
// attempts, dead letter address, automatic dead letter queues, expiry. If a pattern with a
// redelivery setting matches a topic, the address settings replace the retry schedule and
// MaxAttempts of all groups there. Each field comes from the most specific pattern that sets it.
//
// # Retry topics
//
// Consumers of a group with [settings.RetryTopic].Enabled can settle a delivery with a
// [transport.RetryTopic] (TDMQ for Pulsar: retry and dead letters). The broker then acknowledges
// the message and stores it again in a retry topic of the group. Each receive from the original
// topic also takes from the retry topic. After MaxRetries (16) the message goes to the group's dead
// letter topic. A negative acknowledgement delivers the same message again after a delay (1
// minute), with a maximum of its own.
//
// # Priorities
//
// In a topic of type PRIORITY each queue has the messages of one priority, and the last queue those
// of all higher ones too. A receive takes the queues from the last one on, in each of them retries
// beside new messages; a message keeps its priority in retries, dead letters and redrives. So that
// the lower priorities do not wait for ever, each receive that begins after 16 deliveries takes one
// message of a lower priority first; those with messages take turns. Receives at the same moment do
// not wait for one another: while one reads a queue, another one takes from the next. FIFO groups
// have no effect, and retry topics have no priorities.
//
// # Lite topics
//
// A topic of type LITE has lite topics below it: short-lived ones, for example one for each session,
// of which a broker can have many thousands. [tidegate.Message].LiteTopic names that of a message, and
// its first message or subscriber creates it. A group is bound to one such topic
// ([settings.LiteGroup]), and each of its consumers subscribes to lite topics by [Broker.SyncLite]. A
// receive with [transport.ReceiveRequest].LiteConsumer gets messages of these alone, in order, one of
// each lite topic at a time, as a FIFO group does with message groups. A group keeps its place in a
// lite topic while no consumer subscribes to it. A lite topic that was not used for
// [settings.LiteParent].Expiry (72 h) is removed with its messages.
//
// # Delayed messages
//
// A message with a delivery time, in a topic of type DELAY, is not delivered before that time,
// which can be at most 24 hours ahead. Until then it is only on disk. [Broker.Recall] cancels it
// with the handle in its receipt.
//
// # Transactions
//
// A half message, in a topic of type TRANSACTION, is on disk before the response to its send, and
// is not delivered until its producer commits it, through a server. The broker checks an unresolved
// transaction with its producer: by default after 6 s and then every 30 s, 15 times
// ([settings.Transaction]). Then it ends the transaction, and the message becomes a dead letter in
// [AbandonedTransactions].
//
// # Filters
//
// A receive can have a filter: tags ("*", "a", "a || b") or an SQL92 expression over properties. If
// a message does not match, the group skips it, whether it is new or ready again, and the message
// leaves the group's backlog. An invalid expression is rejected with 40010 and the position of the
// fault.
//
// # Throttling
//
// The broker rejects sends with 530 TOO_MANY_REQUESTS because of:
//
//   - the backlog of a topic or group in messages, bytes or age ([settings.Limit])
//   - the rate of a topic or of a client ([settings.Rate], [settings.Quota])
//   - the state of the storage ([settings.Pressure])
//
// The error contains the time after which to retry, if the broker can estimate it. A throttle by
// backlog ends when the backlog has fallen to 80 % of the limit. After that, each sending client
// gets a fair share of the rate at which consumers reduce the backlog. These limits never reject
// receives, which reduce the backlog. [Broker.Throttles] lists the limits and which of them reject
// sends now; [Broker.SetLimits] changes the limits of the whole broker.
//
// # Retention
//
// [settings.Retention] of a topic removes messages by age (72 hours by default), by size, or when
// all groups have consumed them. It does not remove messages in flight or waiting for a retry. If it
// removes messages that a group has not consumed, the broker logs a warning and counts them in
// [status.Subscription].Overtaken. [Broker.PurgeTopic] removes all messages at once, including those
// in flight. Both free disk space.
//
// # Full or damaged disk
//
// If a write finds no disk space, the broker rejects all sends and repeats the write until there is
// space. Consumers continue: the broker then deletes a reserve file of 64 MiB in the data directory
// and writes their progress to that space. To keep this space for consumers, the broker also
// rejects commits and does not move due delayed messages to their queues. No restart is needed.
//
// A corrupt message is logged, counted and skipped. Open fails if settings are corrupt, or if logs
// changed after an orderly close.
//
// # Access
//
// The engine does not authenticate clients. Package broker/server has access keys, rules for topics
// and groups, and TLS.
package broker
