// Package admission bounds what the clients of a server can take before their requests are known to
// be worth it: connections, handshakes, streams that are reset, and memory.
//
// A connection passes three doors, each in a file:
//
//   - conns: a [Listener] bounds the open connections. A new one takes the place of the one that
//     has been idle longest, so clients that open connections and keep them lock no others out.
//   - link, sniff: [Credentials] tell TLS from plain text by the first byte, so one port takes
//     both. They bound the silent connections, and create a certificate for a server without one.
//   - memory: a [Budget] bounds the bytes that requests and responses take on their way through
//     the server, for the whole process, and divides them among the connections.
package admission
