// Package transport is the contract between the SDK and whatever carries its
// requests: transport/rocketmq for the gRPC of RocketMQ 5 and of the tidegate
// broker, or the broker itself in the same process.
//
// A transport makes one attempt and never retries: retrying belongs to the
// producer and the consumer, which see every attempt that way. The one
// exception is gRPC's transparent retry, of requests that certainly never
// reached a server. Package transporttest holds the suite that every
// implementation passes.
//
// All methods may be called by several goroutines at once, block until the
// answer is there or ctx ends, and then return an error that wraps
// context.Cause(ctx). Their other errors are [*tidegate.Error].
package transport

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"github.com/tidegate/tidegate"
)

// A SendResult is what became of one message of a send: Receipt is valid if
// Err is nil.
type SendResult struct {
	Receipt tidegate.Receipt
	Err     error
}

// A Sender makes one attempt to send.
type Sender interface {
	// Send sends msgs, which are of one topic and have IDs, in one attempt
	// and returns a result for each, in their order. It neither changes nor
	// keeps the messages. It may take several requests: what fails one of them
	// as a whole is the result of every message in it, and of none in another,
	// but that later messages of a message group are not sent after a failure
	// that another attempt may cure.
	Send(ctx context.Context, msgs []*tidegate.Message) []SendResult
}

// A Filter chooses messages by tag. The zero value takes all.
type Filter struct {
	// Expression is "*" or empty for all, or tags joined by "||".
	Expression string
	// SQL tells that Expression is a SQL92 expression instead.
	SQL bool
}

// A ReceiveRequest asks for messages of one topic on behalf of a group.
type ReceiveRequest struct {
	Group string
	Topic string

	// Queue is the queue to receive from; AnyQueue for all of them.
	Queue int

	// Push tells that a push consumer asks: its timeouts go through the retry
	// ladder (RocketMQ: consumption retry); false for a simple consumer.
	Push bool

	// Filter chooses messages. The others are not delivered to the group.
	Filter Filter

	// Max is the largest number of messages to return. 0 stands for 1; servers
	// give at most 32 at once.
	Max int

	// MaxBytes bounds the bodies of the messages returned, in bytes; the first
	// message may be larger. If a server ignores it, as RocketMQ does, the transport
	// releases the messages beyond it, which spends an attempt there. Zero means the
	// transport's own bound.
	MaxBytes int

	// InvisibleDuration is how long the messages are kept from other
	// deliveries, counted from the moment the server hands them out.
	InvisibleDuration time.Duration

	// Wait is how long the server may wait for the first message. 0: it
	// answers at once. Servers have bounds (RocketMQ: 5 s to 20 s).
	Wait time.Duration

	// AttemptID names the receive, so that it can be repeated after its response was
	// lost: a receive with the same AttemptID returns the deliveries of the first that are still
	// in flight, and takes new messages only if there are none. On a real RocketMQ that
	// holds for FIFO groups only. Empty means that the receive cannot be repeated.
	AttemptID string

	// Repeat restricts the receive to the deliveries of an earlier one with the same
	// AttemptID: it takes no new message, ignores Wait and Max, and returns none at once if there
	// are none. It also ends the earlier receive if that still waits. A consumer that
	// cancelled a receive repeats it so, and gives back what it brings: the server may have handed
	// out messages that the cancelled call did not return. It needs
	// [Capabilities].RepeatReceive; elsewhere the error's code is 50100.
	Repeat bool
}

// AnyQueue as ReceiveRequest.Queue receives from every queue of the topic.
const AnyQueue = -1

// ErrUnreadable is what the error of a Receive matches whose answer came, but not
// to be read, as one with a message that is too large: the same AttemptID would
// bring it again, without what was given back of it.
var ErrUnreadable = errors.New("the answer cannot be read")

// A Receiver receives.
type Receiver interface {
	// Receive waits for messages and returns at least one, or none and a nil
	// error if there was none within r.Wait. It returns at most r.Max messages.
	//
	// If ctx ends, Receive returns its cause and no message. It first releases the
	// messages that arrived: so they are visible to others when it returns. This
	// takes up to 3 s if the server does not respond; ctx does not shorten it, Close
	// does. Messages that were still on their way wait for the end of their
	// invisible time, unless the receive is repeated (r.Repeat) and the messages
	// that this brings are released.
	Receive(ctx context.Context, r ReceiveRequest) ([]*tidegate.Delivery, error)
}

// ByLadder as the delay of a Retry has the server take its own interval: that of the
// moment, and of the topic and group that the message is really in.
const ByLadder time.Duration = math.MinInt64

// A Settler ends deliveries, or postpones their end. Its errors match
// tidegate.ErrInvalidHandle if the delivery's handle is no longer valid. It
// does not change d.
type Settler interface {
	// Ack marks deliveries of one topic and group as consumed, in as few requests
	// as it takes, and returns an error for each, in their order: nil for those that are.
	Ack(ctx context.Context, ds []*tidegate.Delivery) []error

	// Retry says that consuming failed: the message is delivered again after
	// the delay, or one that the server puts in its place, with the next attempt
	// number; after its last attempt it is given up. The handle is not valid
	// afterwards. Where the server has [Capabilities].RetryResult, the delay may be
	// [ByLadder], the result tells what was made of it, and reason is kept with a
	// message that is given up; else the result is zero and the reason lost.
	Retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, reason string) (RetryResult, error)

	// ChangeInvisibleDuration keeps the message from other deliveries for
	// another dur, counted from now, and returns the handle that replaces
	// d.Handle. It says nothing about success or failure. A dur of 0 gives back
	// a delivery that was not handled: it is ready again at once, and where the
	// receive had Push set and the server has [Capabilities].Suspend, its
	// attempt does not count.
	ChangeInvisibleDuration(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (handle string, err error)

	// DeadLetter makes the message a dead letter of the group at once. A
	// second call for the same delivery succeeds and does nothing, on
	// transports with [Capabilities].IdempotentDeadLetter.
	DeadLetter(ctx context.Context, d *tidegate.Delivery, reason string) error
}

// A RetryResult is what becomes of a message whose consuming failed.
type RetryResult struct {
	Fate  Fate
	Delay time.Duration // of FateAgain: from the moment of the answer
}

// A Fate says what becomes of a message whose consuming failed.
type Fate int

// What can become of it.
const (
	FateUntold     Fate = iota // the server does not say
	FateAgain                  // it is delivered again
	FateDeadLetter             // it is a dead letter, or removed where the server is to keep none
	FateParked                 // it and what follows in its message group wait for somebody to send them on
)

// A Transport is all of it.
type Transport interface {
	Sender
	Receiver
	Settler
	Configurer
	io.Closer // ends what is under way; then every call returns tidegate.ErrClosed
}
