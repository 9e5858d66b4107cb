// Package session has the state of the clients that use gRPC: the time of the last heartbeat, the
// settings that the client sent, its Telemetry streams, its waiting receives, and the topics that
// it publishes. All of this is bounded, and removed with the client.
package session
