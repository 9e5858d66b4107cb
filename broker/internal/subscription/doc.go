// Package subscription has the consumption of one topic by one group. Package consume makes the
// decisions. A [Subscription] has the lock, the timer, the waiting receives, the reading of queues
// and the writes.
//
// The writes are in the order of the changes: each method applies the effects of package consume
// before it releases the lock. A message that leaves the topic, for example a dead letter, is a
// [Leaving]. The package above writes it to its new topic, without a lock, and calls [Leaving.End].
package subscription
