// Package subscription has the consumption of one topic by one group. Package consume makes the
// decisions. A [Subscription] has the lock, the timer, the waiting receives, the reading of queues
// and the writes.
//
// The writes are in the order of the changes: each method applies the effects of package consume
// before it releases the lock.
//
// Liveness: a receive that waits is woken by a message that is stored in one of its queues, by a
// message that is ready again (its failure, its release, or the timer of the first due lease), and
// by the end of another receive that leaves messages. Its own time, its context, a repetition and
// the end of the broker end it. A receive looks for messages once when it begins and once for each
// of these events.
//
// A receive that does not wait can leave a [Watch] instead. The same events wake all watches of the
// queue, because a watch takes no message: the next receive can take it. The end of a source, for
// example the deletion of the topic, wakes them too. A watch remains until it is woken or its owner
// ends it; the owner bounds the number of watches.
//
// A message that leaves the topic, for example a dead letter, is a [Departure]. It takes two
// writes, because messages and leases are in two databases: without the lock, the message is
// written to its new topic with a mark, and then its lease is removed. The mark prevents a second
// copy after a crash.
package subscription
