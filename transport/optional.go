package transport

import (
	"context"
	"errors"
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

// An EndpointConfigurer reports the capabilities of each server. A client can be connected to
// servers of several kinds, so the capabilities of the access endpoint ([Configurer].Capabilities)
// do not apply to all of them.
type EndpointConfigurer interface {
	// EndpointCapabilities returns the capabilities that the server at endpoint, as
	// in Delivery.Endpoint, announced on its current connection. Until the first
	// response on a new connection it returns those of the connection before,
	// without Batch. It returns the zero value for a server that never responded or
	// is unknown. It does not block.
	EndpointCapabilities(endpoint string) Capabilities
}

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
	// recalled before, and has CodeNotImplemented if the server cannot recall.
	Recall(ctx context.Context, topic, handle string) (messageID string, err error)
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

// A ChangeRepeater can repeat a change of an invisible duration whose response
// was lost.
type ChangeRepeater interface {
	// RepeatChange is ChangeInvisibleDuration with dur above 0, after a call whose response was
	// lost. If that call replaced d.Handle, the server makes the change again and returns the same
	// new handle. On a server that does not support it, RepeatChange is ChangeInvisibleDuration.
	// The error matches tidegate.ErrInvalidHandle if the lease has ended.
	RepeatChange(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (handle string, err error)
}

// A DeadLetterReporter makes dead letters and reports the decision of the server.
type DeadLetterReporter interface {
	// DeadLetterResult is DeadLetter of [Settler] and returns the fate of the message:
	// FateDeadLetter, or in the last attempt of a FIFO group FateParked or FateAgain if the group
	// is configured so. FateUntold means that the server does not report it, or that the message
	// had ended before. The errors are those of DeadLetter.
	DeadLetterResult(ctx context.Context, d *tidegate.Delivery, reason string) (RetryResult, error)
}

// A Snoozer postpones deliveries without counting an attempt.
type Snoozer interface {
	// Snooze ends the delivery. The message is delivered again after dur with the
	// same attempt number; zero means at once. It fails with CodeNotImplemented, and
	// does nothing, unless the delivering server has [Capabilities].Snooze. The error
	// matches tidegate.ErrInvalidHandle if the lease has ended, and has
	// CodeIllegalInvisibleTime if dur is negative or above the server's maximum.
	Snooze(ctx context.Context, d *tidegate.Delivery, dur time.Duration) error
}

// A Reconsumer ends failed deliveries as Apache Pulsar does: through the group's retry topic, or by
// a negative acknowledgement.
type Reconsumer interface {
	// Reconsume ends the delivery of a message that could not be consumed, in one attempt, and
	// returns the fate of the message. The handle is invalid afterwards. If it was invalid before,
	// the error matches tidegate.ErrInvalidHandle. Reconsume fails with CodeNotImplemented, and
	// does nothing, unless the delivering server has [Capabilities].Reconsume. It fails with
	// CodeBadRequest if the group has no retry topics or no such level, and with CodeForbidden if
	// the credentials may not send to the group's retry topic and its dead letter topic.
	Reconsume(ctx context.Context, d *tidegate.Delivery, mode ReconsumeMode) (RetryResult, error)
}

// A ReconsumeMode selects how a [Reconsumer] ends a delivery. The zero value selects a retry
// through the retry topic with the next level: level 1 after the first failure, level 2 after the
// second, up to the last one.
type ReconsumeMode struct {
	// Delay is the time until the next delivery, 1 s to 864 000 s. A negative acknowledgement takes
	// shorter ones too. Zero means Level, or for a negative acknowledgement the group's delay.
	Delay time.Duration

	// Level is one of the group's delay levels, the first of them 1. It excludes Delay. Zero means
	// Delay, or the next level.
	Level int

	// Negative selects a negative acknowledgement: the server delivers the same message again, with
	// the next attempt number, instead of a new message through the retry topic. It excludes Level.
	Negative bool
}
