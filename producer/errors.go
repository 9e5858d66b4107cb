package producer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tidegate/tidegate"
)

// A SendError is why a send failed; every error of [Producer.Send] is one.
// errors.Is and errors.AsType find both what ended the send and the last
// attempt's error: a send that was throttled until its ctx ended matches
// context.DeadlineExceeded, the ctx's cause, and tidegate.ErrThrottled.
type SendError struct {
	Topic     string
	MessageID string // the ID that the attempts carried; empty if there was none

	Reason Reason // why there was no further attempt

	Attempts    int // made, throttled ones included
	Throttles   int // of them
	MaxAttempts int // that were allowed; throttled ones not counted if MaxThrottles was set

	// MaybeStored tells that at least one of the attempts may have been stored
	// although it failed: sending the message again may make a duplicate,
	// unless it keeps its ID and the server remembers IDs.
	MaybeStored bool

	// Last is the error of the last attempt; nil if there was none.
	Last error

	// Cause is what ended the send where that was not Last: the cause of ctx,
	// tidegate.ErrClosed, the limiter's error, the fault of the message. Else nil.
	Cause error
}

// Error tells topic, reason, attempt, endpoint and the last answer.
func (e *SendError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "send to %q: ", e.Topic)
	if e.Cause != nil {
		b.WriteString(e.Cause.Error())
	}
	if e.Last != nil {
		if e.Cause != nil {
			b.WriteString(" after ")
		}
		e.writeAttempt(&b)
	}
	if e.MaybeStored {
		b.WriteString(" (the message may have been stored)")
	}
	return b.String()
}

func (e *SendError) writeAttempt(b *strings.Builder) {
	fmt.Fprintf(b, "attempt %d", e.Attempts)
	switch {
	case e.Throttles > 0 && e.Attempts > e.MaxAttempts:
		fmt.Fprintf(b, " (%d throttled)", e.Throttles)
	case e.MaxAttempts > 0:
		fmt.Fprintf(b, " of %d", e.MaxAttempts)
	}
	last := e.Last
	// What the send says itself is not said twice.
	if te, ok := last.(*tidegate.Error); ok { //nolint:errorlint // what is wrapped around it has something to say too
		c := *te
		if c.Endpoint != "" {
			fmt.Fprintf(b, " at %s", c.Endpoint)
		}
		c.Op, c.Endpoint = "", ""
		if c.Subject == e.Topic {
			c.Subject = ""
		}
		last = &c
	}
	fmt.Fprintf(b, ": %v", last)
	if e.Reason == PushedBack {
		b.WriteString(" (the server asked not to retry)")
	}
}

// Unwrap returns Cause and Last, as far as they are there.
func (e *SendError) Unwrap() []error {
	errs := make([]error, 0, 2)
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	if e.Last != nil {
		errs = append(errs, e.Last)
	}
	return errs
}

// errAttemptTimeout is the cause of an attempt's own deadline. It does not
// match context.DeadlineExceeded: the caller's deadline has not passed.
var errAttemptTimeout = fmt.Errorf("%w: no answer within the attempt's share of the time", tidegate.ErrUnavailable)

// endCause joins what ctx says and its cause, so that both can be found.
func endCause(ctxErr, cause error) error {
	if errors.Is(cause, ctxErr) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctxErr, cause)
}
