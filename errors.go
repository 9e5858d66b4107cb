package tidegate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate/internal/protocol"
)

// A Class is the class of a request's result. The producer retries after [ClassTransient] at once,
// or with delays if such failures repeat. It retries after [ClassThrottled] with a growing delay,
// and after the others not at all (RocketMQ: sending retry and throttling).
type Class int

const (
	// ClassOK: the request succeeded.
	ClassOK Class = iota
	// ClassThrottled: the same request can succeed later, at a lower rate.
	ClassThrottled
	// ClassTransient: the same request can succeed now, preferably on another server.
	ClassTransient
	// ClassPermanent: the same request cannot succeed.
	ClassPermanent
	// ClassCancelled: the caller's context ended, or the program closed the client.
	ClassCancelled

	classes // the number of classes
)

// A new class has to be decided in the packages below.
//
//	cmd/internal/cli, carry.go        again: the repetition of a request
//	consumer/deadletter               stepAfter: a failed send of a dead letter
//	consumer/internal/verdict         the repetition of a settlement
//	producer                          faultOf, decide, adapt, charge, ServeChecks
//	producer/internal/retry           Decide, Draw, Record
//	transport/failover                verdict, reactionTo
//	transport/rocketmq/internal/conn  VerdictOf: the circuit breaker
//
// After a failure that is neither a success nor permanent, transport/rest, transport/rocketmq and
// transport/held also hold the later messages of the message group.

// String returns the name in lower case.
func (c Class) String() string {
	switch c {
	case ClassOK:
		return "ok"
	case ClassThrottled:
		return "throttled"
	case ClassTransient:
		return "transient"
	case ClassPermanent:
		return "permanent"
	case ClassCancelled:
		return "cancelled"
	}
	return "unknown"
}

// Classify returns the class of the error of one attempt. It depends on the code and on
// [Error].Lapsed, never on the text.
//
// A code counts by its range, so the codes of a newer server have a class too:
//
//	2xxxx                      ClassOK
//	429xx                      ClassThrottled, except the quotas 42901 and 42902: ClassPermanent
//	408xx                      ClassTransient
//	the other 4xxxx            ClassPermanent
//	501xx, 505xx               ClassPermanent: the server does not support the request
//	the other 5xxxx, and more  ClassTransient
//
// Credentials that the server accepted before and rejects now (Lapsed) are ClassTransient.
// An error without a code is ClassTransient, for example a lost connection. Exceptions are
// context.Canceled and ErrClosed, which are ClassCancelled, and ErrInvalid, which is
// ClassPermanent. An expired deadline is ClassTransient: only the caller knows whether it was the
// deadline of its own context or that of the attempt.
func Classify(err error) Class {
	if err == nil {
		return ClassOK
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Code != 0 {
		if e.Lapsed {
			return ClassTransient
		}
		return classOf(e.Code)
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, ErrClosed):
		return ClassCancelled
	case errors.Is(err, ErrInvalid):
		return ClassPermanent
	}
	return ClassTransient
}

func classOf(c Code) Class {
	switch {
	case c/10000 == 2:
		return ClassOK
	case throttles(c):
		return ClassThrottled
	case c/100 == 408:
		return ClassTransient
	case c/10000 == 4, c/100 == 501, c/100 == 505:
		return ClassPermanent
	}
	return ClassTransient
}

// throttles reports whether a code rejects a request because of the load of the server. The quotas
// of lite topics are limits that do not depend on the load: a program stays above them until it
// removes lite topics or subscriptions.
func throttles(c Code) bool {
	return c/100 == 429 && c != protocol.CodeLiteTopicQuotaExceeded && c != protocol.CodeLiteSubscriptionQuotaExceeded
}

// IsMessageFault reports whether err is ClassPermanent because of this message: the server rejects
// this message and accepts others. It is false for a permanent fault of the configuration, which
// affects every message of the topic, for example a missing topic, rejected credentials or a wrong
// endpoint.
func IsMessageFault(err error) bool {
	if Classify(err) != ClassPermanent {
		return false
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return true // ErrInvalid without a code
	}
	switch c := e.Code; {
	case c == CodeIllegalAccessPoint, c == protocol.CodeIllegalTopic,
		c == protocol.CodeUnrecognizedClientType, c == protocol.CodeClientIDRequired,
		c == protocol.CodeInvalidClientProperties:
		return false
	case c == 0, c >= 40000 && c < 40100, c >= 41300 && c < 41400, c >= 43100 && c < 43200:
		return true
	}
	return false
}

// A Code is a status of the RocketMQ 5 protocol (apache.rocketmq.v2.Code). Zero means that there
// was no response. A code that has no constant here has a name too: see [Code.String]. A newer
// server can send codes that RocketMQ did not have when this version was made: see [Classify].
type Code int32

// The codes that programs distinguish, or that a transport returns, by RocketMQ's names. The
// sentinel errors match whole ranges of codes ([Error.Is]).
const (
	CodeBadRequest           Code = 40000
	CodeIllegalAccessPoint   Code = 40001
	CodeInvalidReceiptHandle Code = 40013
	CodeUnauthorized         Code = 40100
	CodeForbidden            Code = 40300
	CodeNotFound             Code = 40400
	CodeTopicNotFound        Code = 40402
	CodeMessageBodyTooLarge  Code = 41301
	CodeTooManyRequests      Code = 42900
	CodeInternalServerError  Code = 50001
	CodeNotImplemented       Code = 50100
)

var codeNames = map[Code]string{
	protocol.CodeOK: "OK", protocol.CodeMultipleResults: "MULTIPLE_RESULTS", CodeBadRequest: "BAD_REQUEST",
	CodeIllegalAccessPoint: "ILLEGAL_ACCESS_POINT", protocol.CodeIllegalTopic: "ILLEGAL_TOPIC",
	protocol.CodeIllegalConsumerGroup: "ILLEGAL_CONSUMER_GROUP", protocol.CodeIllegalMessageTag: "ILLEGAL_MESSAGE_TAG",
	protocol.CodeIllegalMessageKey: "ILLEGAL_MESSAGE_KEY", protocol.CodeIllegalMessageGroup: "ILLEGAL_MESSAGE_GROUP",
	protocol.CodeIllegalMessagePropertyKey: "ILLEGAL_MESSAGE_PROPERTY_KEY",
	protocol.CodeInvalidTransactionID:      "INVALID_TRANSACTION_ID", protocol.CodeIllegalMessageID: "ILLEGAL_MESSAGE_ID",
	protocol.CodeIllegalFilterExpression: "ILLEGAL_FILTER_EXPRESSION", protocol.CodeIllegalInvisibleTime: "ILLEGAL_INVISIBLE_TIME",
	protocol.CodeIllegalDeliveryTime: "ILLEGAL_DELIVERY_TIME", CodeInvalidReceiptHandle: "INVALID_RECEIPT_HANDLE",
	protocol.CodeMessagePropertyConflict: "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
	protocol.CodeUnrecognizedClientType:  "UNRECOGNIZED_CLIENT_TYPE",
	protocol.CodeMessageCorrupted:        "MESSAGE_CORRUPTED", protocol.CodeClientIDRequired: "CLIENT_ID_REQUIRED",
	protocol.CodeIllegalPollingTime: "ILLEGAL_POLLING_TIME", protocol.CodeIllegalOffset: "ILLEGAL_OFFSET",
	protocol.CodeIllegalLiteTopic: "ILLEGAL_LITE_TOPIC", protocol.CodeInvalidClientProperties: "INVALID_CLIENT_PROPERTIES",
	CodeUnauthorized: "UNAUTHORIZED", protocol.CodePaymentRequired: "PAYMENT_REQUIRED", CodeForbidden: "FORBIDDEN", CodeNotFound: "NOT_FOUND",
	protocol.CodeMessageNotFound: "MESSAGE_NOT_FOUND", CodeTopicNotFound: "TOPIC_NOT_FOUND",
	protocol.CodeConsumerGroupNotFound: "CONSUMER_GROUP_NOT_FOUND", protocol.CodeOffsetNotFound: "OFFSET_NOT_FOUND",
	protocol.CodeRequestTimeout: "REQUEST_TIMEOUT", protocol.CodePayloadTooLarge: "PAYLOAD_TOO_LARGE",
	CodeMessageBodyTooLarge: "MESSAGE_BODY_TOO_LARGE", protocol.CodeMessageBodyEmpty: "MESSAGE_BODY_EMPTY",
	protocol.CodePreconditionFailed: "PRECONDITION_FAILED", CodeTooManyRequests: "TOO_MANY_REQUESTS",
	protocol.CodeLiteTopicQuotaExceeded:        "LITE_TOPIC_QUOTA_EXCEEDED",
	protocol.CodeLiteSubscriptionQuotaExceeded: "LITE_SUBSCRIPTION_QUOTA_EXCEEDED",
	protocol.CodeRequestHeaderFieldsTooLarge:   "REQUEST_HEADER_FIELDS_TOO_LARGE",
	protocol.CodeMessagePropertiesTooLarge:     "MESSAGE_PROPERTIES_TOO_LARGE", protocol.CodeInternalError: "INTERNAL_ERROR",
	CodeInternalServerError: "INTERNAL_SERVER_ERROR", protocol.CodeHANotAvailable: "HA_NOT_AVAILABLE",
	CodeNotImplemented: "NOT_IMPLEMENTED", protocol.CodeProxyTimeout: "PROXY_TIMEOUT",
	protocol.CodeMasterPersistenceTimeout: "MASTER_PERSISTENCE_TIMEOUT",
	protocol.CodeSlavePersistenceTimeout:  "SLAVE_PERSISTENCE_TIMEOUT", protocol.CodeUnsupported: "UNSUPPORTED",
	protocol.CodeVersionUnsupported:           "VERSION_UNSUPPORTED",
	protocol.CodeVerifyFIFOMessageUnsupported: "VERIFY_FIFO_MESSAGE_UNSUPPORTED",
	protocol.CodeFailedToConsumeMessage:       "FAILED_TO_CONSUME_MESSAGE",
}

// String returns RocketMQ's name of the code. For an unknown code it returns the number.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return strconv.Itoa(int(c))
}

// The sentinel errors for errors.Is. The [Error] in the tree of a returned error has the details,
// such as the server's text; errors.AsType[*Error] returns it.
var (
	// ErrThrottled: the server rejected the request because of its load, with reply code 530,
	// TOO_MANY_REQUESTS, or another code that is ClassThrottled. It stored nothing.
	ErrThrottled = errors.New("530 TOO_MANY_REQUESTS")

	// ErrInvalidHandle: the receipt handle does not identify a current delivery. The invisible time
	// is over, a later delivery or change replaced the handle, or the message was acknowledged.
	ErrInvalidHandle = errors.New("receipt handle is no longer valid")

	// ErrTopicNotFound: the server does not have the topic.
	ErrTopicNotFound = errors.New("topic not found")

	// ErrNotFound: the server does not have the named topic, group or message.
	ErrNotFound = errors.New("not found")

	// ErrInvalid: the server can never accept the request. Change the request.
	ErrInvalid = errors.New("invalid")

	// ErrUnauthorized: the server does not accept the credentials.
	ErrUnauthorized = errors.New("unauthorized")

	// ErrForbidden: the server accepts the credentials, but they do not permit the operation.
	ErrForbidden = errors.New("forbidden")

	// ErrUnavailable: the server could not be reached, did not respond in time, or failed. Another
	// attempt can succeed. Requests that the server does not support (501xx, 505xx) do not match.
	ErrUnavailable = errors.New("unavailable")

	// ErrClosed: the program has closed the producer, consumer, transport or broker.
	ErrClosed = errors.New("closed")
)

// An Error describes one failed request. With errors.Is it matches the sentinel errors of its Code,
// for example [ErrThrottled], and every error that Err matches. Several goroutines may share an
// Error if none changes it.
type Error struct {
	// Op is the operation by RocketMQ's name, such as "SendMessage" or "AckMessage".
	Op string

	// Subject is the topic, group or field that the error is about.
	Subject string

	// Endpoint is the server that responded or failed to respond. It is empty if the request did
	// not leave the program.
	Endpoint string

	// Code is the server's status. Zero means that there was no response.
	Code Code

	// RetryAfter is the time that the server requests before the next attempt. Zero means no
	// request; a negative value asks the client not to retry.
	RetryAfter time.Duration

	// MaybeStored reports that the server may have stored a message although the send failed,
	// because the response was lost or late. Sending it again can create a duplicate. For a failed
	// settlement it reports that the delivery may be settled.
	MaybeStored bool

	// NotConnected reports that the attempt never had a connection to the server. The server has
	// certainly not received the request, and MaybeStored is false. NotConnected is false for
	// faults that another attempt to connect does not cure: a fault of TLS and a host name that DNS
	// does not have, at an address that has never worked, and rejected credentials.
	//
	// NotConnected is also set if a RocketMQ proxy had no connection to the broker of the request.
	// Code is then the proxy's.
	NotConnected bool

	// Lapsed reports that the server rejected credentials that it had accepted from this client
	// before: they have expired or are being replaced. The server did not carry out the request.
	// The error is ClassTransient and matches ErrUnavailable, and still has the server's code, such
	// as CodeUnauthorized.
	Lapsed bool

	// Message is the text of the server or of this module: the value, the limit and the remedy.
	Message string

	// Err is the cause. Nil means none.
	Err error
}

// ReplyCode returns 530 for a throttled request and the status code for all others.
func (e *Error) ReplyCode() int {
	if throttles(e.Code) {
		return protocol.ReplyTooManyRequests
	}
	return int(e.Code)
}

// Error returns the operation, subject, endpoint, code and text, as far as they are known.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
	}
	if e.Subject != "" {
		fmt.Fprintf(&b, " %q", e.Subject)
	}
	if e.Endpoint != "" {
		fmt.Fprintf(&b, " at %s", e.Endpoint)
	}
	for _, s := range []string{e.codeText(), e.Message} {
		if s != "" {
			if b.Len() > 0 {
				b.WriteString(": ")
			}
			b.WriteString(s)
		}
	}
	if e.Err != nil {
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(e.Err.Error())
	}
	return strings.TrimPrefix(b.String(), " ")
}

func (e *Error) codeText() string {
	switch {
	case e.Code == 0:
		return ""
	case e.Code == CodeTooManyRequests && strings.HasPrefix(e.Message, "530 "):
		return "" // the text has it already
	case e.Code == CodeTooManyRequests:
		return ErrThrottled.Error()
	}
	if name, ok := codeNames[e.Code]; ok {
		return fmt.Sprintf("%d %s", int(e.Code), name)
	}
	return e.Code.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is a sentinel error of e.Code. For example, [CodeTopicNotFound] matches
// [ErrTopicNotFound] and [ErrNotFound]. Most sentinel errors match a range of codes, so they also
// match codes that this version does not know.
func (e *Error) Is(target error) bool {
	c := e.Code
	switch target {
	case ErrThrottled:
		return throttles(c)
	case ErrInvalidHandle:
		return c == CodeInvalidReceiptHandle
	case ErrTopicNotFound:
		return c == CodeTopicNotFound
	case ErrNotFound:
		return c/100 == 404
	case ErrInvalid:
		return c/100 == 400 || c/100 == 413 || c/100 == 431
	case ErrUnauthorized:
		return c/100 == 401
	case ErrForbidden:
		return c/100 == 403
	case ErrUnavailable:
		return e.Lapsed || c/100 == 408 || c/10000 == 5 && classOf(c) == ClassTransient
	}
	return false
}

// RetryAfter returns the largest Error.RetryAfter in the tree of err: the time that the server
// requests before the next attempt. Zero means that err has none, or that the server asked the
// client not to retry.
func RetryAfter(err error) time.Duration {
	var d time.Duration
	if e, ok := err.(*Error); ok { //nolint:errorlint // the tree is walked here
		d = max(0, e.RetryAfter)
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		d = max(d, RetryAfter(e.Unwrap()))
	case interface{ Unwrap() []error }:
		for _, child := range e.Unwrap() {
			d = max(d, RetryAfter(child))
		}
	}
	return d
}
