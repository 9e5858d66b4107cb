package producer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/retry"
)

// ErrFull matches the error of a send that a full producer rejects ([RejectWhenFull]). The text has
// the counts and the limits. It is not the error of a full spool, spool.ErrFull.
var ErrFull = errors.New("the producer is full")

// A SendError is the error of a failed send; every error of [Producer.Send] is one. It matches the
// cause of the end and the error of the last attempt. For example, a send that was throttled until
// its ctx ended matches context.DeadlineExceeded, the cause of ctx, and tidegate.ErrThrottled.
// [SendError.Fault] classifies it by the remedy.
type SendError struct {
	Topic     string
	MessageID string // the ID in the attempts; empty if the message has none

	Reason StopReason // the reason for the end of the send

	Attempts    int // including throttled ones
	Throttles   int // throttled attempts, plus throttled requests of other messages that the send waited for
	MaxAttempts int // the limit; it excludes throttled attempts if they have a limit of their own

	// Needed is the time that the next attempt would have needed, including the wait before it.
	// Remaining is the time that was left. Zero unless Reason is [StopDeadline].
	Needed, Remaining time.Duration

	// MaybeStored is true if at least one failed attempt may have been stored. Sending the message
	// again can create a duplicate, unless it keeps its ID and the server detects duplicate IDs.
	MaybeStored bool

	op string // "send to" if empty

	// Last is the error of the last attempt; nil if there was none.
	Last error

	// Cause is the reason of the end if Last is not: the cause of ctx, tidegate.ErrClosed, the
	// error of the limiter, or the fault of the message. Otherwise nil.
	Cause error
}

// Error returns the topic, the cause, the attempt, the endpoint and the last response.
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
	case e.MaxAttempts >= e.Attempts:
		fmt.Fprintf(b, " of %d", e.MaxAttempts)
	}
	last := e.Last
	// Leave out the parts that the text of the send has already.
	if te, ok := last.(*tidegate.Error); ok { //nolint:errorlint // a wrapper has a text of its own
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

// Unwrap returns Cause and Last, without nil.
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

// A StopReason is the reason why a send ended without success. Its String method returns it in
// words.
type StopReason = retry.Stop

// The reasons to stop.
const (
	NotStopped      = retry.Continue    // the send succeeded, or another attempt follows
	StopInvalid     = retry.Invalid     // the message can never be sent; no attempt was made
	StopPermanent   = retry.Permanent   // the same request would fail again
	StopExhausted   = retry.Exhausted   // MaxAttempts were made, or there was no connection for two minutes
	StopThrottled   = retry.Throttled   // the server throttled for longer than MaxThrottles or MaxThrottleTime allows
	StopPushedBack  = retry.PushedBack  // the server requested no further attempt
	StopDeadline    = retry.Deadline    // the next attempt could not end before the deadline of ctx
	StopLimiter     = retry.Limiter     // Options.Limiter returned an error
	StopContext     = retry.Context     // ctx ended
	StopClosed      = retry.Closed      // the producer or its transport was closed
	StopFull        = retry.Full        // MaxPending or MaxPendingBytes would be exceeded; no attempt was made
	StopBudget      = retry.Budget      // Options.Budget has no retry left
	StopHalfMessage = retry.HalfMessage // a half message failed that may have reached a server; it is not sent again
	StopSpool       = retry.Spool       // Options.Spool rejected the message; of an Attempt: it moves to the spool for a lost permission
)
