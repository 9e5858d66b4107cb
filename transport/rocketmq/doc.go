// Package rocketmq is the transport of RocketMQ 5: a client of the gRPC service
// apache.rocketmq.v2.MessagingService, as RocketMQ's proxies and the tidegate
// broker offer it. [Client] is a [transport.Transport]: it makes one attempt
// per call and leaves retrying to the producer and the consumer. Only gRPC's
// transparent retry is on, of requests that certainly never reached a server.
//
// A Client asks its endpoints for the route of each topic, keeps one connection
// per server that a route names, and holds a Telemetry session per server and
// consumer group (and one for producers), in which it tells what it does and
// hears what the server wants.
//
// # What differs between servers
//
// A tidegate broker announces what it can do beyond RocketMQ 5.2 in the
// response header x-tidegate-features; [Client.Capabilities] tells. Without it
// several messages of one Send travel in a request each, many at a time, since
// RocketMQ 5.2 delivers all messages of one request with the ID, tag and
// properties of the first. Messages of one message group are then sent one
// after the other, and not at all after one of them failed in a way that
// another attempt may cure: order is worth more than speed there.
//
// The client adapts the settings that a server without features pushes, as RocketMQ pushes them.
// After a throttle it waits at least as long as "RocketMQ: sending retry and throttling" requires.
// It uses the pushed table of delays from the third step on, as RocketMQ's broker does (RocketMQ:
// consumption retry).
//
// A consumer group has a session as push consumer and one as simple consumer,
// each with a client ID of its own and opened on first use. RocketMQ makes no
// difference between the two. To a tidegate broker only a push consumer can say
// that consuming failed, so Retry is said by that one. ChangeInvisibleDuration
// has the flag suspend, so that it is never taken for a failure.
//
// # Errors
//
// A status of the server becomes a [tidegate.Error] with its code. A failure of
// gRPC itself has code 0 and matches tidegate.ErrUnavailable, unless it has a
// fitting code: see the table at transportError.
package rocketmq
