// Package remote has one server as the client sees it: its addresses, the connections to it one
// after the other, the features that it announced on each, faults of TLS, and the circuit breaker
// of its sends. It knows neither topics nor sessions.
package remote
