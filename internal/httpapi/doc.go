// Package httpapi makes requests to the HTTP API of a tidegate broker. It is the
// common ground of broker/admin and transport/rest, which differ in what they
// repeat: each gives [Client.Do] a decision of its own.
//
// Repeating, waiting and rewinding of bodies is go-retryablehttp's. Around it,
// this package bounds each attempt in time, reads each response as a whole and up
// to a limit, notes whether an attempt had a connection, and turns every failure
// into a [Failure] with the broker's code.
//
// It imports nothing of the broker, so that its users link no storage engine.
package httpapi
