// Package refusal has the errors of rejected requests, with RocketMQ's codes: those that several
// packages of the broker return, their text, code and delay for gRPC and HTTP, and the bounds of
// requests that both protocols have in common.
package refusal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// New returns an error with a formatted message, and without an operation. WithOp adds the
// operation. The result is never nil. It has its concrete type because callers read its fields.
func New(code tidegate.Code, subject, format string, args ...any) *tidegate.Error {
	return &tidegate.Error{Code: code, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// WithOp returns err with the operation op, if err is an unwrapped *tidegate.Error without one. It
// returns other errors as they are.
func WithOp(op string, err error) error {
	if e, ok := err.(*tidegate.Error); ok && e.Op == "" { //nolint:errorlint // only an error that is not wrapped
		c := *e
		c.Op = op
		return &c
	}
	return err
}

// TopicNotFound returns an error with 40402, or 40002 if the name is illegal for RocketMQ.
func TopicNotFound(name string) error {
	if strings.Contains(name, ".") { // no such name is legal in RocketMQ
		return New(protocol.CodeIllegalTopic, name,
			"the topic does not exist, and RocketMQ permits no '.' in its name; this broker does: create the topic with PUT /v1/topics/%s", name)
	}
	return New(tidegate.CodeTopicNotFound, name, "the topic does not exist; create it, for example with PUT /v1/topics/%s", name)
}

// GroupNotFound returns an error with 40403.
func GroupNotFound(name string) error {
	return New(protocol.CodeConsumerGroupNotFound, name, "the consumer group does not exist; the first receive creates it")
}

// InvalidHandle returns an error about a receipt handle, with 40013.
func InvalidHandle(format string, args ...any) error {
	return New(tidegate.CodeInvalidReceiptHandle, "receipt handle", format, args...)
}

// IllegalInvisibleTime returns an error about a time that is not between least and most, with
// 40011. The message begins with the words of RocketMQ's proxy, which clients search for.
func IllegalInvisibleTime(subject string, d, least, most time.Duration) error {
	bound := fmt.Sprintf("large. max is %d", most.Milliseconds())
	if d < least {
		bound = fmt.Sprintf("small. min is %d", least.Milliseconds())
	}
	return New(protocol.CodeIllegalInvisibleTime, subject, "the invisibleTime is too %s ms: the %s is %v; give %v to %v", bound, subject, d, least, most)
}

// ConsumptionTooLong returns an error about an invisible duration d that is longer than the time
// left for the delivery, with 40011. The message begins like that of IllegalInvisibleTime.
func ConsumptionTooLong(d, left, longest time.Duration) error {
	return New(protocol.CodeIllegalInvisibleTime, "invisible duration",
		"the invisibleTime is too large. max is %d ms: the invisible duration is %v; a delivery may take %v with all extensions (max_invisible_duration), and %v are left; give less, or end the delivery with a retry",
		left.Milliseconds(), d, longest, left)
}

// Closed returns an error that matches tidegate.ErrClosed.
func Closed() error {
	return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the broker is closed or closing", Err: tidegate.ErrClosed}
}

// Store returns an error about a failed read or write of the store. The request itself is valid.
func Store(err error) error {
	return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the broker could not read or write its data", Err: err}
}

// StoreUnless returns an error of the store as Store does, unless it is the error of ctx. It
// returns nil if err is nil.
func StoreUnless(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return err
	}
	return Store(err)
}

// Setting returns an error about invalid settings of a topic, group or pattern, with 40000. It
// returns nil if err is nil.
func Setting(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &tidegate.Error{Op: op, Subject: name, Code: tidegate.CodeBadRequest, Err: err}
}

// Unsettled returns the error of a settlement whose wait for the disk ended with err, which is the
// cause of ctx or an error of the store.
func Unsettled(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause == nil || !errors.Is(err, cause) {
		return Store(err)
	}
	return &tidegate.Error{MaybeStored: true, Err: err, Message: "the call ended before the write was on disk; the message may be settled"}
}
