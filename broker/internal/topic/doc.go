// Package topic has the running topics, queues and consumer groups of a broker. A [Topic] assigns
// offsets, encodes messages, stores message IDs, and counts its messages. It knows its groups
// only as [Subscription] values, and it makes no I/O except when it is restored.
//
// The package also has the stored forms of topics and groups, and [Policy], the retry settings of a
// group in one topic.
package topic
