package producer

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
)

// A SendError is the error of a failed send; every error of [Producer.Send] is one. It matches both
// the cause of the end and the error of the last attempt. For example, a send that was throttled
// until its ctx ended matches context.DeadlineExceeded, the cause of ctx, and
// tidegate.ErrThrottled. [SendError.Fault] classifies it by the remedy.
type SendError struct {
	Topic     string
	MessageID string // the ID that the attempts carried; empty if there was none

	Reason StopReason // why there was no further attempt

	Attempts    int // made, throttled ones included
	Throttles   int // of them, and throttled requests of other messages that the send waited for
	MaxAttempts int // that were allowed; throttled ones not counted if they had a limit of their own

	// Needed is the time that the next attempt would have needed, with the wait
	// before it, and Remaining the time that was left. Zero unless Reason is
	// [StopDeadline].
	Needed, Remaining time.Duration

	// MaybeStored is true if at least one of the attempts may have been stored
	// although it failed. Sending the message again can create a duplicate, unless
	// it keeps its ID and the server remembers IDs.
	MaybeStored bool

	op string // "send to" if empty

	// Last is the error of the last attempt; nil if there was none.
	Last error

	// Cause is the reason of the end if that was not Last: the cause of ctx,
	// tidegate.ErrClosed, the limiter's error, the fault of the message. Else nil.
	Cause error
}

// Error returns topic, cause, attempt, endpoint and the last response.
func (e *SendError) Error() string {
	var b strings.Builder
	op := e.op
	if op == "" {
		op = "send to"
	}
	fmt.Fprintf(&b, "%s %q: ", op, e.Topic)
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
	if e.Reason == StopPushedBack {
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
