// Package oteltidegate reports the work of producers and consumers to OpenTelemetry, by the
// semantic conventions for messaging systems, version 1.43.
//
//	i, err := oteltidegate.New(oteltidegate.Options{})
//	p, err := producer.New(t, i.ProducerOptions(producer.Options{}))
//	traced := i.Producer(p) // Send, SendAsync, SendBatch, Begin and Transact have spans
//	c, err := consumer.NewPush(t, sub, handle, i.PushOptions(consumer.PushOptions{}))
//
// # Traces
//
// A send is a span "send TOPIC" of kind producer, with an event for each attempt. Its W3C
// trace context travels in Message.TraceContext. Each delivery is a span "process TOPIC" of
// kind consumer, whose parent is the span of the send. The server keeps the trace context of
// a message over retries, and in its dead letter, so one trace shows the life of
// a message.
//
// # Metrics
//
// Defined by the conventions: messaging.client.operation.duration and
// messaging.client.sent.messages for sends (operation "send"), messaging.client.consumed.messages
// and messaging.process.duration for deliveries (operation "process"). Defined by tidegate:
//
//   - tidegate.producer.attempts counts attempts, by their operation ("send", "begin", "commit",
//     "rollback", "recall"), their class ("ok", "throttled", "transient", "permanent", "cancelled")
//     and, if the operation ended without success, by the reason (tidegate.stop_reason);
//   - tidegate.consumer.deliveries counts deliveries, by their disposition ("acked", "retried",
//     "dead-lettered", and the others of [consumer.Disposition]);
//   - tidegate.consumer.receive.failures counts failed receives;
//   - tidegate.consumer.kill_switch.events counts the trips of kill switches and their returns, by
//     tidegate.event ("trip", "return").
//
// The topic is the only field of a message in the attributes of metrics, so the number of series
// does not grow with the number of messages.
package oteltidegate
