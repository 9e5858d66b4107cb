// Package inbox removes duplicates: it calls the handler only for messages that the consumer group
// has not consumed yet.
//
// Consumers deliver at least once. A message is delivered again if its acknowledgement was lost, if
// its invisible time ended, or if a producer sent it twice with one ID. An inbox records the topics
// and IDs of consumed messages for each consumer group. For a recorded message it returns nil
// without calling the handler, so the consumer acknowledges the message.
//
//   - [SQL] records a message in the same database transaction as the handler's own writes. Either
//     both are committed or neither is, also after a crash.
//   - [Memory] keeps the records in this process and loses them when the process ends. It suits
//     handlers that tolerate a duplicate, for example one that refreshes a cache.
package inbox
