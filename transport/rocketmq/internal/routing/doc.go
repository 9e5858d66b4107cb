// Package routing has the routes of topics: which servers have the queues of a topic, which one
// takes the next message, and which servers sends leave out. A [Route] does not change after its
// creation, and asks no server.
package routing
