// Package connlimit bounds the open connections of a listener. When the limit is reached, a new
// connection takes the place of the one that has been idle longest, so clients that open
// connections and keep them cannot lock other clients out.
//
// The server reports on each connection when a request begins and ends, and whether its client is
// authenticated. A connection with a request under way, or whose last request was authenticated,
// is never closed for another one.
package connlimit
