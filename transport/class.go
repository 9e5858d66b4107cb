package transport

import (
	"context"
	"errors"

	"github.com/tidegate/tidegate"
)

// A Class is a kind of outcome of a request, and decides whether and when the producer sends again.
// It follows "RocketMQ: sending retry and throttling": retry at once, except after a throttle.
type Class int

const (
	// OK is no failure.
	OK Class = iota
	// Throttled: the same request may succeed later, at a slower pace.
	Throttled
	// Transient: the same request may succeed now, better elsewhere.
	Transient
	// Permanent: the same request will never succeed.
	Permanent
	// Cancelled: the caller does not want it any more, or closed the client.
	Cancelled
)

// String returns the lower-case name.
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

// Classify sorts the error of one attempt. It decides by code, never by text.
// An error without a code is Transient, as a broken connection is, unless it
// is the end of a context or tidegate.ErrClosed. Whether the caller's own
// context ended, only the caller can tell: an attempt's deadline that passes
// is Transient.
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
	case c == tidegate.CodeNotImplemented, c == tidegate.CodeUnsupported, c == tidegate.CodeVersionUnsupported,
		c == tidegate.CodeVerifyFIFOMessageUnsupported:
		return Permanent
	case c >= 40000 && c < 50000:
		return Permanent
	}
	return Transient
}

// IsMessageFault reports whether err is permanent because of the message: the
// server will never accept it, but accepts others. It is false for a permanent
// fault of the set-up, which every message of the topic meets until an operator
// cures it: a missing topic, refused credentials, a wrong endpoint.
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
		c == tidegate.CodeUnrecognizedClientType, c == tidegate.CodeClientIDRequired:
		return false
	case c == 0, c >= 40000 && c < 40100, c >= 41300 && c < 41400, c >= 43100 && c < 43200:
		return true
	}
	return false
}
