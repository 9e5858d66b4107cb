// Package routes has the handlers of the HTTP API: messages, administration, the overview and the
// audit, and the form of requests, responses and problems that they share.
package routes
