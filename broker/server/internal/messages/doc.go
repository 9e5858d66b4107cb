// Package messages has the handlers of requests about messages over HTTP: sending, also as a
// stream of lines, receiving, also as a stream, and settling deliveries. A handler reads a request,
// asks the [Engine] through the server's middleware, and returns the response as a value for JSON,
// or writes a stream itself. It knows neither the table of routes nor the order in which a request
// is authenticated and counted.
package messages
