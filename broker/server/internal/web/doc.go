// Package web converts between JSON over HTTP and the types of the engine: bodies and queries,
// which are parsed strictly with exact errors, messages and deliveries, lines of streams, and
// problems (RFC 9457). It knows neither routes nor an engine.
package web
