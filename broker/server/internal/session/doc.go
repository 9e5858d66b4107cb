// Package session has the state of the clients that use gRPC: the time of the last request, the
// settings that the client sent, its Telemetry streams, its waiting receives, and the topics that
// it publishes. All of this is bounded, and removed with the client.
//
// Liveness: a waiting receive is woken by the engine, and ended by its own context, by the
// termination of its client, by new access rules and by the end of the server. A Telemetry stream
// is woken by each request for its settings and by each check of a transaction. One timer removes
// silent clients: it fires once in 30 seconds while there are clients, looks at each of them once,
// and is not set while there are none. No other step follows but those of a request.
package session
