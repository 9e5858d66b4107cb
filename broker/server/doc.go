// Package server serves the engine of package broker over gRPC and HTTP. The gRPC service is
// apache.rocketmq.v2.MessagingService, for the official clients of RocketMQ 5 and for tidegate's
// SDK. HTTP with JSON carries messages and the administration.
//
// [New] creates a [Server]. [Server.Serve] serves gRPC on a listener, plain text and TLS on the
// same port. [Server.Handler] serves HTTP in any net/http server. The caller owns the engine: close
// the server first, then the engine.
//
// # Responses over gRPC
//
// The result of a request is in the status of its response, with RocketMQ's codes; the gRPC status
// is then OK. Another gRPC status means that there is no response: the broker is closed, or the
// client cancelled the call. A Telemetry stream that the broker rejects ends with its reason twice:
// a command with the status, and a gRPC status with the same text, because official clients show
// the latter. A client of a type that the broker does not serve, such as one of lite topics, gets
// NOT_IMPLEMENTED; its receives are rejected until it sends other settings. A throttled response
// has code 42900 and a text that begins with "530 TOO_MANY_REQUESTS". If the engine can estimate
// the time to wait, the trailer grpc-retry-pushback-ms has it in milliseconds.
//
// # Extensions of the protocol
//
// The response header x-tidegate-features lists the extensions to the protocol of RocketMQ 5.2:
//
//   - "batch": each message of a SendMessage keeps its own ID, tag and properties, and has its own
//     entry in the response.
//   - "topics": the messages of a SendMessage with the request header x-tidegate-features: topics
//     can have different topics. Instead of grpc-retry-pushback-ms its response has the trailer
//     x-tidegate-pushback-topics: the milliseconds for each run of messages with the same topic,
//     joined by commas, 0 for none. A server with [Options].Intercept does not announce it.
//   - "pushback": throttled responses have the trailer grpc-retry-pushback-ms.
//   - "suspend": a ChangeInvisibleDuration with suspend never counts as a failure.
//   - "deadletter": a repeated ForwardMessageToDeadLetterQueue creates no second copy. The dead
//     letter has the text of the request header x-tidegate-reason.
//   - "retry": the ChangeInvisibleDuration with which a push consumer reports a failure creates no
//     second dead letter when it is repeated, and its reason is recorded in the same way. With the
//     request header x-tidegate-ladder: true the broker's retry interval applies instead of the
//     duration. The trailer x-tidegate-retry of the response has the milliseconds until the next
//     delivery, or "dead-letter" or "parked"; "dead-letter" includes the removal by address
//     settings. The response to ForwardMessageToDeadLetterQueue has the same trailer.
//   - "snooze": with the request header x-tidegate-snooze: true, ChangeInvisibleDuration ends the
//     delivery and does not count its attempt.
//   - "reconsume": with the request header x-tidegate-reconsume, ChangeInvisibleDuration ends a
//     failed delivery. "next", "level=3" and "delay" store the message in the group's retry topic;
//     "negative" delivers it again. The invisible duration is the delay of "delay" and "negative".
//     The response has the trailer x-tidegate-retry.
//   - "packed": a ReceiveMessage with the request header x-tidegate-features: packed gets many
//     messages in one frame, in a field that RocketMQ's protocol does not have. The last frame has
//     the status.
//   - "brief": the response to an AckMessage with the request header x-tidegate-features: brief has
//     no entries if all of them succeeded.
//   - "watch": a ReceiveMessage with the request header x-tidegate-features: watch does not wait,
//     if the client has a Telemetry stream with the same header. If it has taken all messages that
//     it could take, its response has the trailer x-tidegate-watched: true. Then the stream reports
//     once that another receive may find a message: a command has the topic and the queue of the
//     request in a field that RocketMQ's protocol does not have. The stream also reports when the
//     access rules, the group or its topics change. Beyond a limit of watches, receives wait.
//
// Two request headers need no feature. x-tidegate-max-bytes bounds the total size of the bodies in
// a ReceiveMessage; the first message can be larger. x-tidegate-repeat marks the repetition of a
// ChangeInvisibleDuration whose response was lost (broker.Broker.Extend).
//
// # HTTP
//
// GET /v1/openapi.yaml describes all routes and fields. Messages:
//
//	POST /v1/topics/{topic}/messages                   sends a message, many ({"messages":[...]}), or a stream of NDJSON;
//	                                                   a body of text or bytes is the message's body, with the other fields in the query
//	POST /v1/topics/{topic}/recall                     cancels a delayed message
//	POST /v1/groups/{group}/topics/{topic}/receive     receives up to 32 messages with a long poll, or a stream of NDJSON
//	POST /v1/groups/{group}/acknowledge                acknowledges messages ({"handles":[...]})
//	POST /v1/groups/{group}/change-invisible-duration  extends a delivery, or returns the message to the queue
//	POST /v1/groups/{group}/snooze                     postpones a message without counting an attempt
//	POST /v1/groups/{group}/retry                      reports a failure: retry after a time, or after the group's interval
//	POST /v1/groups/{group}/dead-letter                makes the message a dead letter
//	POST /v1/groups/{group}/reconsume-later            acknowledges the message and stores it in the group's retry topic
//	POST /v1/groups/{group}/negative-acknowledge       delivers the same message again after the group's negative_ack.delay
//
// Administration and monitoring:
//
//	PUT, GET, DELETE /v1/topics/{topic}                a topic, as settings.Topic; GET /v1/topics lists all
//	GET /v1/topics/{topic}/messages                    lists stored messages without delivering them
//	GET /v1/topics/{topic}/messages/{id}               where a message is, for each group
//	POST /v1/topics/{topic}/purge                      removes all messages
//	PUT, PATCH, GET, DELETE /v1/groups/{group}         a group, as settings.Group; GET /v1/groups lists all
//	POST /v1/groups/{group}/rewind                     moves the group to an offset, a time, the beginning or the end
//	GET /v1/groups/{group}/parked                      lists message groups that are parked
//	POST /v1/groups/{group}/parked/redrive             redrives them
//	GET, DELETE /v1/groups/{group}/dead-letters        lists or removes the dead letters that the query selects
//	GET /v1/topics/{topic}/queues                      the offsets and times of each queue
//	GET /v1/groups/{group}/topics/{topic}/queues       the progress of the group in each queue
//	GET /v1/groups/{group}/topics/{topic}/leases       lists the unfinished messages of the group in the topic
//	GET /v1/groups/{group}/topics/{topic}/schedule     counts them by the time until they are due
//	GET /v1/groups/{group}/failures                    lists the latest failures of deliveries
//	GET /v1/groups/{group}/dead-letters/classes        counts them by the causes of their failures
//	POST /v1/groups/{group}/dead-letters/redrive       sends them back
//	PUT, GET, DELETE /v1/address-settings/{match}      settings.Address; GET /v1/address-settings lists all
//	GET /v1/topics/{topic}/address-settings            the address settings in effect for a topic
//	PUT, PATCH, GET /v1/throttle                       settings.Limits, and which of them reject sends now
//	POST /v1/snapshot                                  a consistent copy of the data directory, below Options.SnapshotDir
//	GET /healthz                                       the process responds
//	GET /readyz                                        the store works, and the server accepts requests; a throttle or a full disk is no error
//	POST, GET, DELETE /v1/session                      a session of a page in a browser: login, permissions, logout
//	GET /v1/overview                                   the state as a whole, the highest backlogs, and the present problems
//	GET /v1/clients                                    the connected clients
//	GET /v1/audit                                      the latest changes, with their principals and results
//	GET /v1/live                                       the same as a stream of NDJSON, for topics and groups that the request names
//	GET /v1/history                                    the rates and backlogs of the last hour or day
//	GET /metrics                                       metrics for Prometheus; see broker/server/monitoring
//
// The web console at /console/ is a set of static files that use these routes; [Options].NoConsole
// turns it off.
//
// The server rejects an unexpected query or body, and JSON with a duplicate key.
//
// Errors are application/problem+json (RFC 9457) with the members code and reply_code, and
// retry_after and maybe_stored if they apply. A throttled request gets status 429, reply_code 530
// and Retry-After, which is 10 s if the engine cannot estimate the time. The status of a request
// with many items is:
//
//   - 200 if all items succeeded
//   - 207 with a result for each item if some failed
//   - the status of the failure if all items failed with the same code
//
// Invalid JSON fails the whole request; the error has the path of the field. A send without a
// response can be repeated with the same id, and is stored once.
//
// The server responds to each line of a stream of sends when the message is stored. Clients must
// read the responses while they send. Empty lines are heartbeats in both directions: each side
// sends one at least every two minutes, and the other one skips it. A line with an error and
// without a number ends the stream. Streams and waiting receives end when the client disconnects or
// the server begins to stop. Messages that the client did not get are ready again at once.
//
// # Access
//
// With keys or anonymous rules in [Options].Access, every request needs credentials or an anonymous
// rule that allows it. The paths /healthz, /readyz and /v1/openapi.yaml and the files of the
// console need neither. The client signs the request like RocketMQ 5 (authorization,
// x-mq-date-time), uses Basic authentication over HTTP, or has a client certificate
// ([Certificates]). The server rejects a request that no [Rule] allows with 40300, and wrong or
// missing credentials with 40100. It ignores x-mq-session-token.
// After [Server.SetAccess] an open stream continues only if the new rules allow it.
//
// Over HTTP, pages of other origins cannot change anything. A request without credentials that
// arrives in plain text at a loopback address must be for an IP address, localhost, the host of
// [Options].Advertise or one of [Options].HTTPHosts, as a protection against DNS rebinding.
// [Options].AnyHost permits other hosts.
//
// # Limits
//
// One request has at most 1000 messages or acknowledgements. Each message has at most 64 KiB in
// addition to its body. The size of a request is at most:
//
//   - sends: [Options].MaxReceiveSize
//   - acknowledgements: 1000 KiB
//   - other requests over gRPC: 64 KiB
//
// Namespaces, hosts and attempt IDs have at most 255 bytes. The server rejects larger values with
// 40000, 40001, 41300 or 43101, larger settings with gRPC's InvalidArgument, and requests above
// MaxReceiveSize with gRPC's ResourceExhausted.
//
// # Not supported
//
// The server rejects PullMessage, GetOffset, QueryOffset and UpdateOffset (offsets kept by clients)
// and lite topics with a status that names the reason. Half messages and the ends of transactions
// are not available over HTTP, because a check needs a Telemetry stream.
package server
