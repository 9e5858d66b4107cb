// Package server puts the wire in front of the engine of package broker: the
// gRPC service apache.rocketmq.v2.MessagingService, which the official clients
// of RocketMQ 5 and tidegate's own SDK speak, and the HTTP admin.
//
// [New] makes a [Server], [Server.Serve] answers gRPC on a listener (plain text
// and TLS on the same port), [Server.Handler] is the HTTP admin for any
// net/http server. The engine belongs to the caller: close the server first,
// then the engine.
//
// # What it answers
//
// Everything that concerns one request travels in the status of its answer,
// with RocketMQ's codes, and the gRPC status is OK. A gRPC status other than
// OK means that there is no answer: the broker is closed, the client gave up,
// or its Telemetry settings cannot be used. A throttled answer has code 42900, a text
// that begins with "530 TOO_MANY_REQUESTS", and, where the engine can tell, the
// time to wait in the trailer grpc-retry-pushback-ms.
//
// What this broker can do beyond RocketMQ 5.2 is in the response header
// x-tidegate-features: "batch" (several messages in one SendMessage keep their
// own ID, tag and properties, and have an entry each), "pushback" (the trailer),
// "suspend" (ChangeInvisibleDuration with suspend never counts as a failure),
// "deadletter" (a repeated ForwardMessageToDeadLetterQueue makes no second
// copy; the request header x-tidegate-reason is kept with the dead letter).
//
// Not there yet: transactions, offsets. They
// are refused with a status that says so.
package server
