// Package server puts the wire in front of the engine of package broker: the gRPC service
// apache.rocketmq.v2.MessagingService, which the official clients of RocketMQ 5 and tidegate's own
// SDK speak, and HTTP with JSON, for messages and for administration.
//
// [New] makes a [Server], [Server.Serve] answers gRPC on a listener (plain text and TLS on the same
// port), [Server.Handler] answers HTTP for any net/http server. The engine belongs to the caller:
// close the server first, then the engine.
//
// # What it answers
//
// Everything that concerns one request travels in the status of its answer, with RocketMQ's codes,
// and the gRPC status is OK. A gRPC status other than OK means that there is no answer: the broker
// is closed, the client gave up, or its Telemetry settings cannot be used. A throttled answer has
// code 42900, a text that begins with "530 TOO_MANY_REQUESTS", and, where the engine can tell, the
// time to wait in the trailer grpc-retry-pushback-ms.
//
// What this broker can do beyond RocketMQ 5.2 is in the response header x-tidegate-features:
// "batch" (several messages in one SendMessage keep their own ID, tag and properties, and have an
// entry each), "pushback" (the trailer), "suspend" (ChangeInvisibleDuration with suspend never
// counts as a failure), "deadletter" (a repeated ForwardMessageToDeadLetterQueue makes no second
// copy; the request header x-tidegate-reason is kept with the dead letter), "retry" (so it is with
// a message that a push consumer's ChangeInvisibleDuration, which tells of a failure, gives up;
// with the request header x-tidegate-ladder: true the broker's own interval holds in place of the
// duration; the trailer x-tidegate-retry of its answer says what becomes of the message: in how
// many milliseconds it is delivered again, or "dead-letter", which includes removal where address
// settings want it, or "parked"; a ForwardMessageToDeadLetterQueue has the trailer too).
// "snooze" (with the request header x-tidegate-snooze: true,
// ChangeInvisibleDuration ends the delivery without counting its attempt), "reconsume" (with the
// request header x-tidegate-reconsume it ends a failed delivery: "next", "level=3" or "delay" send
// the message to the group's retry topic, "negative" has it delivered again; the invisible duration
// is the delay of the latter two, and the answer has the trailer x-tidegate-retry), "packed" (a
// ReceiveMessage with the request header x-tidegate-features: packed gets many messages in one
// frame, in a field that RocketMQ's contract does not have, and the status with the last frame),
// "brief" (an AckMessage with the request header x-tidegate-features: brief whose entries all
// succeeded gets no entries). Beside these, the request header x-tidegate-max-bytes bounds the
// bodies of a ReceiveMessage together, in bytes; the first may be larger; the request header
// x-tidegate-repeat says that a ChangeInvisibleDuration follows one whose answer was lost: see
// broker.Broker.RepeatChange.
//
// # HTTP
//
// GET /v1/openapi.yaml describes all of it, field by field. Messages:
//
//	POST /v1/topics/{topic}/messages                   sends a message, {"messages":[...]} many, NDJSON a stream of them;
//	                                                   a body of text or bytes is a message's as it is, and the query says the rest
//	POST /v1/topics/{topic}/recall                     takes back a message whose delivery time is ahead
//	POST /v1/groups/{group}/topics/{topic}/receive     receives up to 32, with a long poll, or NDJSON as they come
//	POST /v1/groups/{group}/acknowledge                {"handles":[...]}: they are consumed
//	POST /v1/groups/{group}/change-invisible-duration  keeps a message for longer, or gives it back
//	POST /v1/groups/{group}/snooze                     postpones a message without counting an attempt
//	POST /v1/groups/{group}/retry                      consuming failed: again after a time, or after the group's interval
//	POST /v1/groups/{group}/dead-letter                makes it a dead letter
//	POST /v1/groups/{group}/reconsume-later            acknowledges it, and has it again from the group's retry topic
//	POST /v1/groups/{group}/negative-acknowledge       the same message again after the group's negative_ack.delay
//
// Administration, and about the server:
//
//	PUT, GET, DELETE /v1/topics/{topic}                GET /v1/topics: all; the body of a PUT is a broker.TopicConfig
//	POST /v1/topics/{topic}/purge                      removes all messages
//	PUT, GET, DELETE /v1/groups/{group}                GET /v1/groups: all; likewise, with broker.GroupConfig
//	POST /v1/groups/{group}/rewind                     goes on at an offset, a time, the beginning or the end
//	GET /v1/groups/{group}/parked                      message groups that wait after a last attempt
//	POST /v1/groups/{group}/parked/redrive             sends them on
//	GET, DELETE /v1/groups/{group}/dead-letters        those that the query chooses
//	POST /v1/groups/{group}/dead-letters/redrive       sends them back
//	PUT, GET, DELETE /v1/address-settings/{match}      broker.AddressSettings; GET /v1/address-settings: all
//	GET /v1/topics/{topic}/address-settings            what holds for a topic
//	PUT, GET /v1/throttle                              broker.Limits, and which of them refuse sends now
//	GET /healthz                                       the process runs
//	GET /readyz                                        the engine can store and the server takes requests
//	GET /metrics                                       metrics for Prometheus; see broker/server/monitoring
//
// A query or a body where none is taken is refused, and so is JSON with a key twice.
//
// Errors are application/problem+json (RFC 9457) with the members code, reply_code and, where they
// say something, retry_after and maybe_stored. Throttled requests get 429 with reply_code 530 and
// Retry-After, which is 10 s where the engine cannot estimate it. A request about many is answered
// with 200 if all succeeded, with 207 and a result for each if some failed, and with the failure's
// own status if all failed alike; one whose JSON is wrong is refused as a whole, with the field's
// path. A send whose answer was lost can be repeated with the same id: it is stored once.
//
// A stream of sends is answered line by line, when each is stored; read the answers while sending.
// Empty lines are signs of life on both ways, to be given every two minutes at least and passed
// over. A line with an error and without a number is the last. Streams and waiting receives end
// when the client goes or the server begins to end; what the client did not get is ready again at
// once.
//
// # Access
//
// With [Options].Access every request needs a key: signed as RocketMQ 5 does (authorization,
// x-mq-date-time), over HTTP also as Basic, or by a client certificate; see [Certificates]. What no
// [Rule] allows is refused with 40300, wrong or missing credentials with 40100. x-mq-session-token
// is not looked at. After [Server.SetAccess] open streams go on only if they would be let in again.
// Over HTTP, pages of other origins may change nothing, and without credentials a request that
// arrives in plain text at a loopback address has to be for a name that nobody can make up; see
// [Options].AnyHost and HTTPHosts.
//
// # Limits
//
// One request has at most 1000 messages or acknowledgements, each message 64 KiB beside its body,
// all of them [Options].MaxReceiveSize; acknowledgements have 1000 KiB, other requests over gRPC 64
// KiB. Namespaces, hosts and attempt IDs have at most 255 bytes. What is more is refused with
// 40000, 40001, 41300 or 43101, settings with gRPC's InvalidArgument, more than MaxReceiveSize with
// its ResourceExhausted.
//
// # What is not there
//
// Offsets that clients keep themselves (PullMessage, GetOffset, QueryOffset, UpdateOffset) and lite
// topics are refused with a status that says so. Half messages and the ends of transactions have no
// HTTP: a check needs a Telemetry stream.
package server
