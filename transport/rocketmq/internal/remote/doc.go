// Package remote has the client's state of one server: its addresses, its successive connections
// with their announced features, faults of TLS, and the circuit breaker of its sends. It knows
// neither topics nor sessions.
package remote
