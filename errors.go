package tidegate

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors that callers branch on, with errors.Is. The server's own words
// are in the [Error] that matches: errors.AsType[*Error].
var (
	// ErrThrottled is returned when the server refused a request because it
	// has too much to do: reply code 530, TOO_MANY_REQUESTS. Nothing was stored.
	ErrThrottled = errors.New("530 TOO_MANY_REQUESTS")

	// ErrInvalidHandle is returned when a receipt handle no longer names a
	// delivery: its invisible time is over, a later delivery or change
	// replaced it, or it was acknowledged before.
	ErrInvalidHandle = errors.New("receipt handle is not valid any more")

	// ErrTopicNotFound is returned when the server has no such topic.
	ErrTopicNotFound = errors.New("topic not found")

	// ErrNotFound is returned when something that was asked for by name does
	// not exist: a topic, a group, a message.
	ErrNotFound = errors.New("not found")

	// ErrInvalid is returned for input that can never be accepted: the
	// request, not the server, has to change.
	ErrInvalid = errors.New("invalid")

	// ErrUnauthorized is returned when the server does not accept the keys,
	// ErrForbidden when it does but they do not permit the operation.
	ErrUnauthorized = errors.New("unauthorized")
	ErrForbidden    = errors.New("forbidden")

	// ErrUnavailable is returned when the server could not be reached, did
	// not answer in time, or failed on its side. Another attempt may succeed;
	// what the server cannot do at all (NOT_IMPLEMENTED, 505xx) does not
	// match.
	ErrUnavailable = errors.New("unavailable")

	// ErrClosed is returned by everything that was closed by its user.
	ErrClosed = errors.New("closed")
)

// An Error is one failed request. It matches the sentinels above by its code,
// and what Err matches. Goroutines may share one that none changes.
type Error struct {
	// Op is the operation, as RocketMQ names it: "SendMessage", "AckMessage".
	Op string

	// Subject is what it was about: a topic, a group, a field's name.
	Subject string

	// Endpoint is the server that answered or failed to; empty if the request
	// never left the program.
	Endpoint string

	// Code is the server's status; 0 if there was no answer.
	Code Code

	// RetryAfter is the server's wish for the time until the next attempt;
	// 0 if it has none. A negative value asks not to try again.
	RetryAfter time.Duration

	// MaybeStored tells that a failed send may have been stored all the same,
	// because the answer was lost or late: this is where duplicates come from.
	// Of a failed settlement it tells that the delivery may be settled.
	MaybeStored bool

	// Message is the server's text, or ours: value, limit, what to do.
	Message string

	// Err is the cause below; nil if there is none.
	Err error
}

// ReplyCode returns 530 for a throttled request, and the status code otherwise.
func (e *Error) ReplyCode() int {
	if e.Code == CodeTooManyRequests {
		return ReplyTooManyRequests
	}
	return int(e.Code)
}

// Error returns operation, subject, endpoint, code and text, as far as known.
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
		return "" // the text says it already
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

// Is reports whether target is the sentinel of e's code.
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
		return c == CodeRequestTimeout || c >= 50000 && c < 50500 && c != CodeNotImplemented
	}
	return false
}

// RetryAfter returns the time that the server asked to wait before the next
// attempt: the largest Error.RetryAfter in the tree of err. Zero means that there
// is none, or that the server asked not to try again.
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
