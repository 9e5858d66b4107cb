// Package conn has what a client knows of its servers: addresses, connections with their announced
// features, faults of TLS and the circuit breaker of sends (Server, Link, Connection); the routes
// of topics (Route, Places); the combination of messages of several topics in one request
// (Combiner); the headers of requests (Identity, Signer); and the errors of responses and calls
// (OfStatus, OfCall). It knows no sessions.
package conn
