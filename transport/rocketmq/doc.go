// Package rocketmq is the transport for RocketMQ 5: a client of the gRPC service
// apache.rocketmq.v2.MessagingService of RocketMQ's proxies and of the tidegate broker. [Client]
// implements [transport.Transport]. It makes one attempt per call; the producer and the consumer
// retry. gRPC's transparent retry is the only other one.
//
// A Client requests the route of each topic from its endpoints and keeps a connection to each
// server of a route. It has a Telemetry session for each server and consumer group, and one for
// producers. In a session the client announces its settings, and the server pushes its own.
//
// # Differences between servers
//
// A tidegate broker announces its extensions of RocketMQ 5.2 in the response header
// x-tidegate-features; [Client.Capabilities] returns them.
//
// Without the extension "batch" the client sends each message of a Send in a request of its own,
// many at the same time, because RocketMQ 5.2 delivers all messages of a request with the ID, tag
// and properties of the first. It sends the messages of one message group one after the other.
// After a failure that another attempt can cure it does not send the later ones, which keeps their
// order.
//
// The client adapts the settings that a server without features pushes, as RocketMQ pushes them.
// After a throttle it waits at least as long as "RocketMQ: sending retry and throttling" requires.
// It uses the pushed table of delays from the third delay on, as RocketMQ's broker does (RocketMQ:
// consumption retry).
//
// WIRE.md beside this file lists the differences that programs see on a RocketMQ 5.2.0, and how the
// SDK reports each.
//
// A consumer group has a session as push consumer and one as simple consumer. Each has a client ID
// of its own and is opened on first use. RocketMQ does not distinguish them. A tidegate broker
// accepts failures only from push consumers, so Retry uses that session. ChangeInvisibleDuration
// sets the flag suspend, so that no server counts it as a failure.
//
// # Errors
//
// A status of the server becomes a [tidegate.Error] with its code. A failure of gRPC has code 0 and
// matches tidegate.ErrUnavailable, unless a code fits: see the table at OfCall in internal/failure.
package rocketmq
