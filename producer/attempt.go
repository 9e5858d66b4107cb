package producer

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// An Operation is the kind of request that an attempt makes. Its name is that of the method.
type Operation uint8

// The operations.
const (
	SendOperation Operation = iota // Send, SendAsync, SendBatch, and messages of the spool
	BeginOperation
	CommitOperation
	RollbackOperation
	RecallOperation
)

// String returns the lower-case name.
func (o Operation) String() string {
	switch o {
	case SendOperation:
		return "send"
	case BeginOperation:
		return "begin"
	case CommitOperation:
		return "commit"
	case RollbackOperation:
		return "rollback"
	case RecallOperation:
		return "recall"
	}
	return "unknown"
}

// An Attempt is the event of one decision: an attempt for one message and the step after it. Each
// message of a shared request has its own event.
//
// The pause after a throttle also counts against the limits of the messages that wait in the queue
// (see [Inputs].Waited). If a waiting message reaches a limit, its send fails without an attempt;
// the event then has a Duration and a Messages of 0.
type Attempt struct {
	Operation Operation
	Topic     string
	MessageID string        // empty for RecallOperation
	Number    int           // attempts of the operation so far; 1 for the first
	Endpoint  string        // the server of the attempt; empty if unknown
	Messages  int           // in the request, including this one
	Began     time.Time     // start of the attempt
	Duration  time.Duration // of the attempt

	Err         error // nil if it succeeded
	MaybeStored bool  // a failed attempt may have been stored

	// Decision is the step after the attempt. It equals Decide(Inputs).
	Decision
	Inputs Inputs
}

// observe reports the decision about an attempt to the log and to OnAttempt. messages is the number
// of messages in the request.
func (t *topic) observe(messages int, o *outcome, began time.Time) {
	p := t.p
	logs := o.err != nil && p.log.Enabled(context.Background(), slog.LevelDebug) // a log line outlives the send
	if o.skipped || (!logs && p.opts.OnAttempt == nil) {
		return
	}
	a := Attempt{
		Operation: o.operation, Topic: t.name, MessageID: o.it.Message.ID, Number: o.in.Attempts,
		Endpoint: o.endpoint(), Messages: messages, Began: began, Duration: o.ended.Sub(began),
		Err: o.err, MaybeStored: maybeStored(o.err), Decision: o.decision, Inputs: o.in,
	}
	if o.waiting {
		a.Began, a.Duration, a.MaybeStored, a.Messages = o.ended, 0, false, 0
	}
	if logs {
		p.log.LogAttrs(context.Background(), slog.LevelDebug, "attempt failed", // as above
			slog.String("operation", a.Operation.String()), slog.String("topic", a.Topic), slog.String("message_id", a.MessageID),
			slog.Int("attempt", a.Number), slog.String("endpoint", a.Endpoint),
			slog.String("class", a.Class.String()), slog.Any("error", a.Err),
			slog.String("stop", a.Stop.String()),
			slog.Duration("delay", a.Delay), slog.String("delay_source", a.DelaySource.String()))
	}
	if p.opts.OnAttempt == nil {
		return
	}
	defer p.recovered("OnAttempt panicked", a.MessageID)
	p.opts.OnAttempt(a)
}

// recovered logs a panic of a user's function. The caller must defer it.
func (p *Producer) recovered(event, messageID string) {
	if v := recover(); v != nil {
		p.log.Error(event, "panic", v, "message_id", messageID, "stack", string(debug.Stack()))
	}
}
