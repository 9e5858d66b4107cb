// Package transport is the interface between the SDK and a server. Package transport/rocketmq
// implements it over the gRPC protocol of RocketMQ 5 and of the tidegate broker, transport/rest
// over the broker's HTTP API, and package broker in the same process.
//
// A transport makes one attempt. The producer and the consumer retry, so they see every attempt.
// The one exception is gRPC's transparent retry of a request that certainly did not reach a server.
// Package transporttest has the tests that every implementation passes.
//
// # Write a transport
//
// Embed [Base] in a struct and add the methods of [Transport] that Base does not have. Announce in
// Capabilities only features that all methods support. Run package transporttest on it. The command
// in examples/transport is a complete one, with the test.
//
// A type that wraps a Transport must also forward the optional interfaces [LaneSender], [Pinger],
// [Recaller], [Watcher], [Streamer], [EndpointConfigurer], [LiteSubscriber] and [Transactor].
// Otherwise the program loses them without an error: for example, a producer without a LaneSender sends each message in a
// request of its own. Package transport/failover forwards all of them. Take care with a struct that
// embeds a client: it has the optional methods of the client, for example ReceiveOrWatch and
// ReceiveParts beside its own Receive.
//
// # Calls
//
// Several goroutines may call all methods at the same time. A method blocks until there is a
// response or ctx ends; in the latter case its error wraps context.Cause(ctx). All other errors are
// [*tidegate.Error] values.
package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// A SendResult is the result of one message of a send. Receipt is valid if Err is nil.
type SendResult struct {
	Receipt tidegate.Receipt
	Err     error
}

// A Sender makes one attempt to send.
type Sender interface {
	// Send sends msgs in one attempt and returns a result for each, in their order. All messages
	// have the same topic, and each has an ID. Send neither changes nor keeps them.
	//
	// Send may use several requests. The failure of a request is the result of all messages in it,
	// and of no others, with one exception: after a failure that another attempt can cure, Send
	// does not send the later messages of the same message group or lite topic.
	//
	// An error that matches tidegate.ErrThrottled means that the server stored nothing. If a server
	// throttles after it may have stored the message, the error is transient and has MaybeStored.
	Send(ctx context.Context, msgs []*tidegate.Message) []SendResult
}

// A ReceiveRequest describes one receive of a consumer group from a topic.
type ReceiveRequest struct {
	Group string
	Topic string

	// Queue is the queue to receive from. [AnyQueue] means all queues.
	Queue int

	// Push marks the receive of a push consumer: a timeout of its deliveries is a failure and
	// follows the retry schedule (RocketMQ: consumption retry). False means a simple consumer.
	Push bool

	// Filter selects the messages. The server does not deliver the others to the group.
	Filter tidegate.Filter

	// Max is the largest number of messages to return. Servers return at most 32. Zero means 1.
	Max int

	// MaxBytes bounds the bodies of the returned messages, in bytes; the first message may be
	// larger. If a server ignores it, as RocketMQ does, the transport releases the messages beyond
	// the bound, and the delivery counts as an attempt of each. Zero means the transport's own
	// bound.
	MaxBytes int

	// InvisibleDuration is the time before the server delivers an unacknowledged message again,
	// counted from its delivery.
	InvisibleDuration time.Duration

	// Wait is the time that the server waits for the first message. Servers bound it (RocketMQ: 5 s
	// to 20 s). Zero means that the server responds at once.
	Wait time.Duration

	// AttemptID identifies the receive so that it can be repeated after its response was lost. A
	// second receive with the same AttemptID returns those deliveries of the first that are still
	// in flight; if there are none, it takes new messages. RocketMQ supports this for FIFO groups
	// only. Empty means that the receive cannot be repeated.
	AttemptID string

	// Arrived is how many parts a [Streamer] delivered in earlier receives with the same AttemptID.
	// The receive does not return their messages again. Zero means none.
	Arrived int

	// LiteConsumer identifies the consumer whose lite topics of Topic the receive is for: those of
	// the consumer's calls of [LiteSubscriber].SyncLite. Filter is not used. Empty means that Topic
	// has no lite topics.
	LiteConsumer string

	// Repeat restricts the receive to the deliveries of an earlier one with the same AttemptID. It
	// takes no new message, ignores Max and does not wait. If the earlier receive still waits, the
	// server ends it.
	//
	// A consumer that cancelled a receive repeats it in this way and releases the returned
	// deliveries: the server may have delivered messages that the cancelled call did not return. It
	// needs [Capabilities].RepeatReceive; without it the error has code 50100.
	Repeat bool
}

// AnyQueue as ReceiveRequest.Queue receives from all queues of the topic.
const AnyQueue = -1

// ErrUnreadable matches the error of a Receive whose response arrived but could not be read, for
// example because a message is too large. Use a new AttemptID for the next receive: the same one
// would return the same response, without the messages that the transport has released.
var ErrUnreadable = errors.New("the response cannot be read")

// A Receiver receives messages.
type Receiver interface {
	// Receive waits for messages and returns between 1 and r.Max of them. It returns none and a nil
	// error if there was no message within r.Wait.
	//
	// If ctx ends, Receive returns its cause and no message. Before that it releases the messages
	// that have arrived, so that other consumers can receive them. The release takes up to 3 s if
	// the server does not respond; the end of ctx does not shorten it, Close of the transport does.
	//
	// Messages that were still in transit stay invisible until their invisible duration is over. To
	// release them at once, repeat the receive (r.Repeat) and release the returned messages.
	Receive(ctx context.Context, r ReceiveRequest) ([]*tidegate.Delivery, error)
}

// A Settler ends deliveries or postpones their end. Its errors match tidegate.ErrInvalidHandle if
// the handle of the delivery is no longer valid.
type Settler interface {
	// Ack acknowledges deliveries of one topic and group in as few requests as possible. It returns
	// an error for each delivery, in their order. Nil means acknowledged, or, over a protocol that
	// does not confirm acknowledgements, written to the connection.
	Ack(ctx context.Context, ds []*tidegate.Delivery) []error

	// Settle ends a delivery by a verdict. The handle is not valid afterwards. The result has the
	// fate of the message, where the server reports it: see the kinds of verdicts.
	//
	// A server takes [Release], [Retry] and [DeadLetter], and those of [Capabilities].Verdicts of
	// the server that delivered the message. For another verdict the error has CodeNotImplemented,
	// and nothing happens.
	Settle(ctx context.Context, d *tidegate.Delivery, v Verdict) (RetryResult, error)

	// Extend makes the message invisible for dur from now, instead of the rest of its invisible
	// duration. It returns the handle that replaces d.Handle, and reports neither success nor
	// failure of the consumption. The attempt counts if the delivery is not settled until then,
	// because a handler may have ended the process.
	//
	// repeat marks the repetition of an Extend whose response may have been lost. If that call
	// replaced d.Handle, a server with [Capabilities].RepeatChange makes the change again and
	// returns the same new handle. If there was no such call, the server makes the change. Without
	// the capability a repetition is a call like another one.
	//
	// A push consumer extends a lease with a dur above 0. A simple consumer can also make the
	// message ready at once, with a dur of 0 and without repeat; the attempt counts. The effect of
	// 0 on a delivery of a receive with Push is undefined: use Settle.
	Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (handle string, err error)
}

// A Verdict is the end of a delivery that is not acknowledged. The zero value releases it.
type Verdict struct {
	Kind VerdictKind

	// Delay is the time until the next delivery, of Retry, Snooze, RetryTopic and NegativeAck.
	Delay time.Duration

	// Level is one of the group's delay levels, the first of them 1. It is of RetryTopic alone, and
	// excludes Delay.
	Level int

	// Reason is stored with a dead letter by servers with [Capabilities].RetryResult. It is lost on
	// others.
	Reason string
}

// Unsupported returns the error of a Settle of d for a verdict that the server does not take.
func (v Verdict) Unsupported(d *tidegate.Delivery) error {
	return &tidegate.Error{
		Op: "Settle", Subject: d.Topic, Endpoint: d.Endpoint, Code: tidegate.CodeNotImplemented,
		Message: "the server does not take the verdict " + v.Kind.String() + "; check Capabilities.Verdicts first",
	}
}

// A VerdictKind is the kind of a verdict, or a set of kinds, joined by |.
type VerdictKind uint

const (
	// Release returns a delivery that no handler has seen to the queue: the message is ready at
	// once. The attempt does not count if the receive had Push set and the server has
	// [Capabilities].Suspend; other servers may count it.
	Release VerdictKind = 0

	// Retry reports a failed consumption. The server delivers the message again after Delay, with
	// the next attempt number; it may choose another delay. After the last attempt it makes the
	// message a dead letter, or parks its message group (see [Fate]). A server that does not store
	// attempt numbers may count from 1 again after a crash. On servers with
	// [Capabilities].RetryResult the delay may be [BySchedule], and the result describes the
	// server's decision; on other servers it is zero.
	Retry VerdictKind = 1 << (iota - 1)

	// DeadLetter makes the message a dead letter of the group at once. The fate is FateDeadLetter,
	// or in the last attempt of a FIFO group FateParked or FateAgain if the group is configured so.
	// FateUntold means that the server does not report it, or that the message had ended before. On
	// servers with [Capabilities].IdempotentDeadLetter a second call for the same delivery succeeds
	// and does nothing; on others it can create a second dead letter.
	DeadLetter

	// Snooze delivers the message again after Delay with the same attempt number; zero means at
	// once. The error has CodeIllegalInvisibleTime if Delay is negative or above the server's
	// maximum.
	Snooze

	// RetryTopic ends a failed delivery as Apache Pulsar's reconsumeLater does: the message becomes
	// a new one of the group's retry topic, delivered after Delay, 1 s to 864 000 s, or after the
	// delay of Level. With neither, the level is 1 after the first failure, 2 after the second, up
	// to the last one. The error has CodeBadRequest if the group has no retry topics or no such
	// level, and CodeForbidden if the credentials may not send to the group's retry topic and its
	// dead letter topic.
	RetryTopic

	// NegativeAck ends a failed delivery as Apache Pulsar's negativeAcknowledge does: the server
	// delivers the same message again after Delay, with the next attempt number. Zero means the
	// group's delay.
	NegativeAck
)

// String returns the name of the kind, or the names of a set, joined by "|".
func (k VerdictKind) String() string {
	if k == Release {
		return "Release"
	}
	var names []string
	for i, name := range [...]string{"Retry", "DeadLetter", "Snooze", "RetryTopic", "NegativeAck"} {
		if bit := Retry << i; k&bit != 0 {
			names, k = append(names, name), k&^bit
		}
	}
	if k != 0 {
		names = append(names, fmt.Sprintf("VerdictKind(%d)", uint(k)))
	}
	return strings.Join(names, "|")
}

// Has reports whether a set of kinds has all of another one.
func (k VerdictKind) Has(other VerdictKind) bool { return k&other == other }

// BySchedule as the delay of a [Retry] means the delay of the server's retry schedule, by its
// current settings for the topic and group of the message.
const BySchedule time.Duration = math.MinInt64

// A RetryResult is the server's decision about a delivery that a verdict has ended.
type RetryResult struct {
	Fate  Fate
	Delay time.Duration // of FateAgain: the time from the response to the next delivery
}

// A Fate is the next state of a message after a failed consumption.
type Fate int

// The fates.
const (
	FateUntold Fate = iota // the server does not report it
	FateAgain              // the server delivers the message again
	// the message is a dead letter, or removed if its address settings have no dead letter address
	FateDeadLetter
	// the message and its successors in the message group wait until an operator redrives them
	FateParked
)

// A Transport is a connection with all methods that producers and consumers need. An implementation
// embeds [Base], which has the methods that not every server supports. [LaneSender], [Pinger],
// [Recaller], [Watcher], [Streamer], [LiteSubscriber] and [Transactor] are optional.
type Transport interface {
	Sender
	Receiver
	Settler
	Configurer
	io.Closer // ends calls under way; later calls return tidegate.ErrClosed
}

// A Base is embedded in a transport and has the methods of [Configurer]. Methods that the contract
// adds later appear here too, so that a transport that embeds Base still compiles.
//
// The server has no settings and no capabilities, and one Receive is enough for all queues of a
// topic.
type Base struct{}

var _ Configurer = Base{}

// ProducerSettings returns no settings. It does not check the topic.
func (Base) ProducerSettings(context.Context, string) (ProducerSettings, error) {
	return ProducerSettings{}, nil
}

// ConsumerSettings returns no settings. It checks neither the group nor the topic.
func (Base) ConsumerSettings(context.Context, string, string) (ConsumerSettings, error) {
	return ConsumerSettings{}, nil
}

// Queues returns AnyQueue.
func (Base) Queues(context.Context, string, string) ([]int, error) { return []int{AnyQueue}, nil }

// Capabilities returns none.
func (Base) Capabilities(string) Capabilities { return Capabilities{} }

// ProducerSettings are the settings that a server has for producers. A zero field means that the
// server has no setting, or that the transport ignores it (see the documentation of the transport).
type ProducerSettings struct {
	MaxAttempts int            // of one send, the first included
	Backoff     backoff.Policy // after a throttled attempt
	MaxBodySize int            // bytes
}

// ConsumerSettings are the settings that a server has for the consumers of a group. A zero field
// means that the server has no setting.
type ConsumerSettings struct {
	FIFO             bool           // one message of each message group at a time, in order
	MaxAttempts      int            // deliveries of one message, including the first; negative: no maximum
	Retry            backoff.Policy // the retry schedule: Delay(0) follows the first failed delivery
	ReceiveBatchSize int            // messages per receive
	LongPolling      time.Duration
}

// Capabilities are the features of a server that RocketMQ 5.2 does not have. The zero value is
// RocketMQ 5.2.
type Capabilities struct {
	// Batch: the messages of one request keep their own IDs, tags and properties, and have a result
	// each. Without it a transport sends each message in a request of its own, several at the same
	// time.
	Batch bool

	// PushBack: the response to a throttled request has the time to wait.
	PushBack bool

	// Verdicts are the verdicts that the server takes beside [Release], [Retry] and [DeadLetter],
	// for example Snooze|RetryTopic.
	Verdicts VerdictKind

	// Suspend: a [Release] of a delivery that was received with Push does not
	// count as an attempt. Consumers release unhandled messages when they stop or pause. Without
	// Suspend a release counts as an attempt, and after the last attempt the message is a dead
	// letter. RocketMQ 5.5 does not count releases either, but does not announce it, so the SDK
	// treats it like the servers without Suspend.
	Suspend bool

	// IdempotentDeadLetter: repeating a [DeadLetter] creates no second dead letter.
	IdempotentDeadLetter bool

	// RetryResult: a [Retry] can have [BySchedule], and Settle returns the server's decision. The
	// server counts attempts by the current settings of the message's topic and group. The consumer
	// therefore leaves the delay and the last attempt to the server.
	RetryResult bool

	// RepeatChange: an extension can be repeated after its response was lost ([Settler].Extend).
	RepeatChange bool

	// RepeatReceive: a receive with an AttemptID can be repeated in groups of every kind, also with
	// [ReceiveRequest].Repeat.
	RepeatReceive bool

	// Watch: the server can report that a receive may find a message ([Watcher]).
	Watch bool
}

// A Configurer returns the settings and capabilities of a server.
type Configurer interface {
	// ProducerSettings returns the server's settings for producers of the topic. It sends a
	// request, or returns the settings that the server pushed last.
	ProducerSettings(ctx context.Context, topic string) (ProducerSettings, error)

	// ConsumerSettings returns the server's settings for consumers of the group and topic. It sends
	// a request, or returns the settings that the server pushed last.
	ConsumerSettings(ctx context.Context, group, topic string) (ConsumerSettings, error)

	// Queues returns the queues that the group's consumers receive from, each with a Receive of its
	// own. It returns [AnyQueue] alone if one Receive is enough for all of them.
	Queues(ctx context.Context, group, topic string) ([]int, error)

	// Capabilities returns the capabilities of the server at endpoint, as in Delivery.Endpoint, or
	// of the server that the transport connects to first if endpoint is empty. A client can be
	// connected to servers of several kinds. A transport whose servers are all of one kind returns
	// constants. Capabilities does not block.
	//
	// If servers announce their capabilities, these are the ones of the current connection. Until
	// the first response on a new connection they are those of the connection before, without
	// Batch. They are zero for a server that never responded or is unknown.
	Capabilities(endpoint string) Capabilities
}
