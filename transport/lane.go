package transport

import (
	"context"

	"github.com/tidegate/tidegate"
)

// A Lane is one server that accepts messages. Messages of one topic and the same lane can share a
// request if the server supports that.
type Lane struct {
	// Endpoint is the server. It equals Receipt.Endpoint and Error.Endpoint of the lane's sends.
	// [LaneRequest].Avoid lists such endpoints.
	Endpoint string

	// MaxMessages is the largest number of messages in one request. It is 1
	// unless the connection in use announced that messages of one request keep
	// their own ID, tag and properties ([Capabilities].Batch).
	MaxMessages int

	// MaxBytes bounds the encoded size of one request with several messages. A
	// single message may be larger. Zero means no bound.
	MaxBytes int
}

// A LaneRequest asks for the lane of one message.
type LaneRequest struct {
	// Topic is the topic of the message. It is required.
	Topic string

	// MessageGroup is the message's group. A group keeps its lane while the topic has the same
	// writable queues, because another lane would break the order. A group therefore ignores Avoid.
	// Empty means any server of the topic.
	MessageGroup string

	// Avoid lists endpoints, as in Lane.Endpoint, at which an earlier attempt failed. Lane returns
	// one of them only if there is no other. Empty means none.
	Avoid []string
}

// A LaneSender lets the caller choose the messages that share a request. It is optional for a
// [Sender]: without it a producer sends each message with Send. Several goroutines may call its
// methods at the same time.
type LaneSender interface {
	// Lane returns the lane for the next message. It reserves nothing and sends no
	// message. It blocks while the servers of the topic are unknown. If ctx ends
	// before they are known, the error wraps context.Cause(ctx). The errors are those
	// of a result of Send, with MaybeStored false.
	Lane(ctx context.Context, r LaneRequest) (Lane, error)

	// SendLane sends msgs to the lane's server in one request and returns a result for each, in
	// their order. There are at most lane.MaxMessages of them, all of one topic, each with an ID.
	// SendLane neither changes nor keeps them. It blocks until there is a response or ctx ends. The
	// errors are those of Send.
	//
	// If the lane has changed, for example because the current connection does not support several
	// messages in one request, or if the server does not accept the topic of msgs, SendLane sends
	// nothing, and every result matches ErrLaneChanged. The caller then calls Lane again. Such a
	// call is not an attempt.
	SendLane(ctx context.Context, lane Lane, msgs []*tidegate.Message) []SendResult
}

// AwaitConnection returns a ctx whose calls wait for a connection until it ends. Other calls fail
// at once if there is no connection. While a call waits, the transport tries to connect about once
// a second. A request that reached a connection is not repeated. The producer uses it for retries.
// A transport that keeps no connections ignores it.
func AwaitConnection(ctx context.Context) context.Context {
	return context.WithValue(ctx, awaitKey{}, true)
}

// AwaitsConnection reports whether ctx comes from AwaitConnection. Transports call it.
func AwaitsConnection(ctx context.Context) bool { return ctx.Value(awaitKey{}) != nil }

type awaitKey struct{}
