package transport

import (
	"context"
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A Class is the class of a request's result. The producer retries after [Transient] at once, after
// [Throttled] with a growing delay, and after the others not at all (RocketMQ: sending retry and
// throttling).
type Class int

const (
	// OK: the request succeeded.
	OK Class = iota
	// Throttled: the same request can succeed later, at a lower rate.
	Throttled
	// Transient: the same request can succeed now, preferably on another server.
	Transient
	// Permanent: the same request cannot succeed.
	Permanent
	// Cancelled: the caller's context ended, or the program closed the client.
	Cancelled
)

// String returns the name in lower case.
func (c Class) String() string {
	switch c {
	case OK:
		return "ok"
	case Throttled:
		return "throttled"
	case Transient:
		return "transient"
	case Permanent:
		return "permanent"
	case Cancelled:
		return "cancelled"
	}
	return "unknown"
}

// Classify returns the class of the error of one attempt. It depends on the code, never on the
// text.
//
// An error without a code is Transient, for example a lost connection. Exceptions are
// context.Canceled and tidegate.ErrClosed, which are Cancelled, and tidegate.ErrInvalid, which is
// Permanent. An expired deadline is Transient: only the caller knows whether it was the deadline of
// its own context or that of the attempt.
func Classify(err error) Class {
	if err == nil {
		return OK
	}
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code != 0 {
		return classOf(e.Code)
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, tidegate.ErrClosed):
		return Cancelled
	case errors.Is(err, tidegate.ErrInvalid):
		return Permanent
	}
	return Transient
}

func classOf(c tidegate.Code) Class {
	switch {
	case c == tidegate.CodeOK:
		return OK
	case c == tidegate.CodeTooManyRequests:
		return Throttled
	case c == tidegate.CodeRequestTimeout:
		return Transient
	case c == tidegate.CodeNotImplemented, c == protocol.CodeUnsupported, c == protocol.CodeVersionUnsupported,
		c == protocol.CodeVerifyFIFOMessageUnsupported:
		return Permanent
	case c >= 40000 && c < 50000:
		return Permanent
	}
	return Transient
}

// IsMessageFault reports whether err is permanent because of this message: the server rejects this
// message and accepts others. It is false for a permanent fault of the configuration, which affects
// every message of the topic, for example a missing topic, rejected credentials or a wrong
// endpoint.
func IsMessageFault(err error) bool {
	if Classify(err) != Permanent {
		return false
	}
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return true // ErrInvalid without a code
	}
	switch c := e.Code; {
	case c == tidegate.CodeIllegalAccessPoint, c == tidegate.CodeIllegalTopic,
		c == protocol.CodeUnrecognizedClientType, c == protocol.CodeClientIDRequired:
		return false
	case c == 0, c >= 40000 && c < 40100, c >= 41300 && c < 41400, c >= 43100 && c < 43200:
		return true
	}
	return false
}
