// Package rocketmq is the transport for RocketMQ 5: a client of the gRPC service
// apache.rocketmq.v2.MessagingService of RocketMQ's proxies and of the tidegate broker. [Client]
// implements [transport.Transport]. It makes one attempt per call; the producer and the consumer
// retry. The one exception is gRPC's transparent retry of a request that reached no server.
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
// A server without extensions, such as RocketMQ 5.2, pushes settings that differ from RocketMQ's
// documentation. The client returns them with two changes. The backoff after a throttle is at least
// that of "RocketMQ: sending retry and throttling". The pushed table of 18 delays begins with its
// third delay, as in RocketMQ's broker (RocketMQ: consumption retry).
//
// WIRE.md beside this file lists the differences that programs see on a RocketMQ 5.2.0, and how the
// SDK reports each.
//
// A consumer group can have two sessions with a server: one as push consumer and one as simple
// consumer. The client opens each on first use, with a client ID of its own. RocketMQ does not
// distinguish them. A tidegate broker accepts reports of failures only from push consumers, so
// Retry uses the session of the push consumer. ChangeInvisibleDuration sets the flag suspend on a
// tidegate broker, which then does not count the change as a failure. RocketMQ 5.5 does not count
// an attempt whose last change had the flag, so on RocketMQ only Release sets it.
//
// Each consumer of lite topics has a session and a client ID of its own. RocketMQ returns several
// messages of a lite topic in one receive, in order, and delivers all of them again if one is not
// acknowledged. Settle rejects a DeadLetter of such a message on RocketMQ 5.5.0, which would store
// the dead letter in the lite topic too.
//
// # Errors
//
// A status of the server becomes a [tidegate.Error] with its code. A failure of gRPC has the
// matching code of RocketMQ if there is one (see OfCall in internal/conn), and otherwise code 0.
// An error with code 0 matches tidegate.ErrUnavailable, unless ctx ended or the client was closed.
//
// # Files
//
// For readers of the code:
//
//   - send.go: Lane and SendLane choose the server; sendRequest sends, sendError reads a result
//   - receive.go: receives; settle.go: Ack, Settle and Extend; checks of transactions
//   - lite.go: consumers of lite topics
//   - transaction.go: half messages and their ends; sampled log lines
//   - call.go: call, through which all unary requests go, with its errors
//   - route.go: the servers of a topic; session.go: Telemetry, heartbeats and watches;
//     settings.go: what servers push
//   - client.go, options.go: [Client] and its end; [Options]
//   - internal/conn: one server. connection.go has the connection and the features that it
//     announced, server.go the circuit breaker and the errors of statuses (OfStatus), routing.go
//     the choice of a server, headers.go signatures. It does not know the Client
//   - Package internal/wire has the codec, which the broker shares
package rocketmq
