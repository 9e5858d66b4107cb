// Package status has the state of a broker as it is shown: topics, consumer groups, throttles, dead
// letters and parked message groups, and the types that select and change them. Package broker, its
// HTTP administration and package broker/admin use the same types; the JSON of the HTTP API is that
// of these types.
//
// The package has no code of the engine, and needs neither the storage engine nor gRPC.
package status
