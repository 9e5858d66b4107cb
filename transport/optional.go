package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
)

// The interfaces in this file are optional. A transport implements those that its protocol
// supports, and the SDK finds them with a type assertion. The rules of the package comment hold for
// all methods: unless documented otherwise, a method makes one attempt, blocks until there is a
// response or ctx ends, and may be called by several goroutines.

// ErrLaneChanged matches the results of [LaneSender].SendLane if the lane has changed: the
// connection to its endpoint did not announce support for several messages in one request, or the
// topic or a message group moved to another server. Nothing was sent.
var ErrLaneChanged = errors.New("the lane has changed; the transport sent nothing")

// A Pinger checks servers and topics.
type Pinger interface {
	// Ping checks that the server responds, accepts the credentials and knows the
	// topics, with one request for each topic, or one in all if there is none.
	// It waits for a connection until ctx ends. The errors are those of Send; the
	// error of a topic that does not exist matches tidegate.ErrTopicNotFound.
	Ping(ctx context.Context, topics ...string) error
}

// A Recaller cancels delayed messages.
type Recaller interface {
	// Recall removes a message whose delivery time has not come, by the
	// RecallHandle of its receipt, in one attempt. It returns the message's ID.
	// The error matches tidegate.ErrNotFound if the message was delivered or
	// recalled before. It has CodeBadRequest if the server did not issue the handle
	// for a message of this topic, CodeForbidden if the settings of the server forbid
	// recalls, and CodeNotImplemented if the server cannot recall.
	Recall(ctx context.Context, topic, handle string) (messageID string, err error)
}

// A Watcher reports that a receive may find a message. A consumer of many topics then needs no
// waiting receive for each topic.
type Watcher interface {
	// ReceiveOrWatch is Receive with a Wait of 0. If there are no further messages, and the server
	// has [Capabilities].Watch, it can also leave a watch: then it returns a ready that is not nil.
	// ready is closed once another receive may find a message, or once the server can no longer
	// report a message; it may be closed already, and may be closed without a message. The watch
	// ends when ready is closed or ctx ends; ready may then never be closed. The server may reject
	// a watch at any time, for example at a limit: then ready is nil.
	ReceiveOrWatch(ctx context.Context, r ReceiveRequest) (ds []*tidegate.Delivery, ready <-chan struct{}, err error)
}

// A Streamer hands over messages before a receive ends. A message that arrives while a consumer
// works then needs no request of its own, and does not wait for one.
type Streamer interface {
	// ReceiveParts is Receive, but the server can go on with the receive after its first messages.
	// deliver gets each part of the messages as it arrives, one call at a time; ReceiveParts returns
	// the others, or none. r.Max, r.MaxBytes and r.Wait bound all parts together; the first message
	// of each part may be larger. The remaining invisible durations of a part (InvisibleUntil) begin
	// after the time since, by the local clock.
	//
	// ReceiveParts keeps no reference to a part. No error is about it, and the end of ctx does not
	// release it. A repetition with r.AttemptID sets r.Arrived. From a server that cannot go on,
	// deliver gets nothing.
	ReceiveParts(ctx context.Context, r ReceiveRequest, deliver func(part []*tidegate.Delivery, since time.Time)) ([]*tidegate.Delivery, error)
}

// An EndpointConfigurer has servers of several systems, whose settings differ. The consumer asks it
// for the settings of the server that delivered a message. Without it, or without a response, the
// settings of [Configurer].ConsumerSettings apply to the deliveries of all servers.
type EndpointConfigurer interface {
	// EndpointSettings returns the last known settings for consumers of the group and topic at the
	// server of endpoint, as in Delivery.Endpoint. ok is false if they are unknown, which ends with
	// the first response of that server to a Queues of the group and topic. It does not block.
	EndpointSettings(endpoint, group, topic string) (s ConsumerSettings, ok bool)
}

// A LiteSubscriber receives from lite topics, as the consumers of a [ReceiveRequest] with a
// LiteConsumer.
type LiteSubscriber interface {
	// SyncLite changes or confirms the lite topics of a consumer, and returns when the change has an
	// effect: later receives of the consumer return messages of its lite topics, and only of these.
	// It makes one attempt. A consumer repeats its whole set ([LiteSet]) about every 30 s, because a
	// server forgets the set of a consumer that it has not heard of for a while. The error has code
	// 42902 if the consumer would have more lite topics than the server permits, 42901 if the parent
	// would, and 40020 for an invalid name; nothing changes then.
	SyncLite(ctx context.Context, s LiteSync) error

	// ServeLite calls ended for each lite topic that the server takes from the consumer, for example
	// because it has removed the lite topic. One goroutine calls ended. ServeLite blocks until ctx
	// ends, and then returns nil; another end is an error. A server that cannot report such an end
	// is no error.
	ServeLite(ctx context.Context, c LiteConsumer, ended func(liteTopic string)) error
}

// A LiteConsumer identifies a consumer of lite topics. All fields are required.
type LiteConsumer struct {
	Group string
	Topic string // the parent of the lite topics
	ID    string // different for each consumer of a transport, as in ReceiveRequest.LiteConsumer
}

// A LiteSync is a change of the lite topics of a consumer.
type LiteSync struct {
	LiteConsumer
	Action LiteAction
	Topics []string // lite topics; may be empty with LiteSet

	// Start is where the group begins in the lite topics that the consumer adds.
	Start LiteStart
}

// A LiteAction is the kind of a [LiteSync]. The zero value is LiteSet.
type LiteAction int

// The actions.
const (
	LiteSet    LiteAction = iota // the consumer has these lite topics and no others
	LiteAdd                      // these in addition
	LiteRemove                   // without these; none of them is no error
)

// A LiteStart is a position in a lite topic. One field is set. The zero value means the first message
// that the group has not consumed; the group keeps its position while no consumer subscribes.
type LiteStart struct {
	Oldest bool      // the oldest message
	Newest bool      // after the newest message
	Last   int64     // that many messages before the end
	Offset int64     // the message with the offset
	Time   time.Time // the first message that was stored at that time or later
}

// Validate returns an error with CodeBadRequest if several fields are set or a number is negative, and
// nil otherwise.
func (s LiteStart) Validate() error {
	fault := func(format string, args ...any) error {
		return &tidegate.Error{Subject: "start", Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
	}
	set := 0
	for _, is := range []bool{s.Oldest, s.Newest, s.Last != 0, s.Offset != 0, !s.Time.IsZero()} {
		if is {
			set++
		}
	}
	switch {
	case set > 1:
		return fault("%d fields are set; set one of Oldest, Newest, Last, Offset and Time", set)
	case s.Last < 0:
		return fault("Last is %d; give a positive number", s.Last)
	case s.Offset < 0:
		return fault("Offset is %d; give a positive number, or set Oldest", s.Offset)
	}
	return nil
}

// A Transactor sends transactional messages.
type Transactor interface {
	// SendHalf stores msg as a half message in one attempt. No consumer receives the message before
	// EndTransaction commits it. The receipt has a TransactionID. msg needs an ID and a topic of
	// the type TRANSACTION. SendHalf neither changes nor keeps msg. The errors are those of Send.
	SendHalf(ctx context.Context, msg *tidegate.Message) SendResult

	// EndTransaction commits or rolls back a half message in one attempt. A repeated call changes
	// nothing. Its error matches tidegate.ErrNotFound, and so does the error for a transaction that
	// the server has discarded or does not know. The error matches tidegate.ErrInvalid if r is
	// neither Commit nor Rollback.
	EndTransaction(ctx context.Context, t Transaction, r Resolution) error

	// ServeChecks calls check for each request of a server for the resolution of a half message of
	// the topics, and sends the returned resolution to the server. It sends none for
	// ResolutionUnknown; the server then repeats the request later. Several goroutines call check
	// at the same time; its ctx ends with ctx. ServeChecks blocks until ctx ends or an error ends
	// it, and then until all calls of check have returned. It returns nil if ctx ended.
	ServeChecks(ctx context.Context, topics []string, check func(context.Context, TransactionCheck) Resolution) error
}

// A Transaction names a half message. All fields are required; the receipt of the half message
// has them.
type Transaction struct {
	ID        string // Receipt.TransactionID
	MessageID string
	Topic     string
	Endpoint  string // the server that stored the half message
}

// A TransactionCheck is a server's request for the resolution of a half message.
type TransactionCheck struct {
	Transaction Transaction       // for EndTransaction
	Message     *tidegate.Message // the half message; never nil
}

// A Resolution is the end of a transaction. The zero value is ResolutionUnknown.
type Resolution int

// The resolutions.
const (
	ResolutionUnknown Resolution = iota // no decision yet
	Commit
	Rollback
)

// String returns the lower-case name.
func (r Resolution) String() string {
	switch r {
	case ResolutionUnknown:
		return "unknown"
	case Commit:
		return "commit"
	case Rollback:
		return "rollback"
	}
	return "invalid"
}

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

	// Topics: the server is the only one of the topic, and its requests can have messages of all
	// topics whose lane has this Endpoint and Topics. MaxMessages and MaxBytes bound such a request
	// as a whole. The producer may use the lane for further messages of the topic without a call of
	// Lane, until a send to it fails.
	Topics bool
}

// A LaneRequest asks for the lane of one message.
type LaneRequest struct {
	// Topic is the topic of the message. It is required.
	Topic string

	// MessageGroup is the message's OrderKey: its group, or its lite topic. A group keeps its lane
	// while the topic has the same writable queues, because another lane would break the order. A
	// group therefore ignores Avoid. Empty means any server of the topic.
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
	// their order. There are at most lane.MaxMessages of them, each with an ID. All have one topic,
	// unless lane.Topics is set; the messages of each topic are then next to each other. SendLane
	// neither changes nor keeps them. It blocks until there is a response or ctx ends. The errors
	// are those of Send. A fault of one topic, such as a missing permission, is no result of
	// another: SendLane repeats a request that was rejected as a whole in parts.
	//
	// If the lane has changed, for example because the current connection does not support several
	// messages in one request, or if the server does not accept a topic, SendLane sends nothing of
	// that topic, and its results match ErrLaneChanged. The caller then calls Lane again. Such a
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
