// Package session remembers the clients that speak gRPC: when each gave a sign of
// life, what it said of itself in its settings, the Telemetry streams that it can be
// told something by, the receives that it has parked, and the topics that it
// publishes. All of that is bounded, and forgotten with the client.
package session
