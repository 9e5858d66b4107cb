// Package httpapi sends requests to the HTTP API of a tidegate broker. Packages broker/admin and
// transport/rest share it. They retry different requests, so each passes its own [Decision] to
// [Client.Do].
//
// The library go-retryablehttp repeats requests, waits, and rewinds bodies. This package adds
//   - a time limit for each attempt,
//   - a size limit for responses, which are read completely,
//   - a record of whether an attempt had a connection, and
//   - a [Failure] with the broker's code for every failed request.
//
// The server and the clients share the JSON of a [Delivery].
//
// Package httpapi imports nothing of the broker, so its users link no storage engine.
package httpapi
