package tidegate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate/internal/protocol"
)

// The sentinel errors for errors.Is. The [Error] in the tree of a returned error has the details,
// such as the server's text; errors.AsType[*Error] returns it.
var (
	// ErrThrottled: the server rejected the request because of its load, with reply code 530,
	// TOO_MANY_REQUESTS. It stored nothing.
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
	// attempt can succeed. Requests that the server does not support (NOT_IMPLEMENTED, 505xx) do
	// not match.
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
	// The error is ClassTransient and matches ErrUnavailable, and still has CodeUnauthorized.
	Lapsed bool

	// Message is the text of the server or of this module: the value, the limit and the remedy.
	Message string

	// Err is the cause. Nil means none.
	Err error
}

// ReplyCode returns 530 for a throttled request and the status code for all others.
func (e *Error) ReplyCode() int {
	if e.Code == CodeTooManyRequests {
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
// [ErrTopicNotFound] and [ErrNotFound].
func (e *Error) Is(target error) bool {
	c := e.Code
	switch target {
	case ErrThrottled:
		return c == CodeTooManyRequests
	case ErrInvalidHandle:
		return c == CodeInvalidReceiptHandle
	case ErrTopicNotFound:
		return c == CodeTopicNotFound
	case ErrNotFound:
		return c >= 40400 && c < 40500
	case ErrInvalid:
		return c >= 40000 && c < 40100 || c >= 41300 && c < 41400 || c >= 43100 && c < 43200
	case ErrUnauthorized:
		return c == CodeUnauthorized
	case ErrForbidden:
		return c == CodeForbidden
	case ErrUnavailable:
		return e.Lapsed || c == CodeRequestTimeout || c >= 50000 && c < 50500 && c != CodeNotImplemented
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
