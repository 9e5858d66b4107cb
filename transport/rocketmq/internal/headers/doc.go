// Package headers makes the headers of requests: the client's identity, the request ID, and the
// signature of RocketMQ's ACL.
package headers
