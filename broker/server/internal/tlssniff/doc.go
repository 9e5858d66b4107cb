// Package tlssniff lets one port take TLS and plain text: by the first byte of each
// connection. It bounds those that are silent, and makes the certificate of a
// server that was given none.
package tlssniff
