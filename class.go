package tidegate

import (
	"context"
	"errors"

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

// A new class has to be decided in the packages below. Their tests TestEveryClass fail until then.
//
//	cmd/internal/move                 again: the repetition of a request
//	consumer/deadletter               stepAfter: a failed send of a dead letter
//	consumer/internal/verdict         the repetition of a settlement
//	producer                          faultOf, decide, adapt, charge, ServeChecks
//	producer/internal/retry           Decide, Draw, Record
//	transport/failover                verdict, reactionTo
//	transport/rocketmq/internal/conn  VerdictOf: the circuit breaker
//
// After a failure that is neither a success nor permanent, transport/rest, transport/rocketmq and
// transport/amqp also hold the later messages of the message group.

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
	case c == protocol.CodeOK:
		return ClassOK
	case c == CodeTooManyRequests:
		return ClassThrottled
	case c == CodeRequestTimeout:
		return ClassTransient
	case c == CodeNotImplemented, c == protocol.CodeUnsupported, c == protocol.CodeVersionUnsupported,
		c == protocol.CodeVerifyFIFOMessageUnsupported:
		return ClassPermanent
	case c >= 40000 && c < 50000:
		return ClassPermanent
	}
	return ClassTransient
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
	case c == CodeIllegalAccessPoint, c == CodeIllegalTopic,
		c == protocol.CodeUnrecognizedClientType, c == protocol.CodeClientIDRequired:
		return false
	case c == 0, c >= 40000 && c < 40100, c >= 41300 && c < 41400, c >= 43100 && c < 43200:
		return true
	}
	return false
}
