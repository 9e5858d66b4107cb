// Package web is between JSON over HTTP and the engine's words: bodies and queries
// that are read strictly and told where they are wrong, messages and
// deliveries, lines of a stream, and problems (RFC 9457). It knows no route and no engine.
package web
