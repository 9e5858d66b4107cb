package producer

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/retry"
)

// The operations of attempts.
const (
	sendOperation     = "send" // of messages of the spool too
	beginOperation    = "begin"
	commitOperation   = "commit"
	rollbackOperation = "rollback"
	recallOperation   = "recall"
)

// An Attempt is the event of one decision: an attempt for one message and the step after it. Each
// message of a shared request has its own event.
//
// The pause after a throttle also counts against the limits of the messages that wait in the queue.
// If a waiting message reaches a limit, its send fails without a further attempt. The event of that
// decision has a Duration and a Messages of 0, and Number is 0 if the message never had an attempt.
type Attempt struct {
	Operation string // "send", "begin", "commit", "rollback" or "recall"
	Topic     string
	MessageID string        // empty for a recall
	Number    int           // attempts of the operation so far; 1 for the first, 0 without an attempt
	Endpoint  string        // the server of the attempt; empty if unknown
	Messages  int           // in the request, including this one
	Began     time.Time     // start of the attempt
	Duration  time.Duration // of the attempt

	Err         error // nil if it succeeded
	MaybeStored bool  // a failed attempt may have been stored

	// The step after the attempt. If Class is tidegate.ClassOK, the operation succeeded; if Stop is
	// set, it failed; otherwise another attempt follows.
	Class tidegate.Class // of Err, corrected by the end of ctx and by earlier successes
	Stop  StopReason

	// Delay is the wait from the end of the attempt to the next at the same server. DelayFrom is
	// its origin: "backoff" for Options.Backoff, "pacing" for Options.Pacing, or "push-back" if the
	// server requested a longer wait. Both are zero if there is no wait or no next attempt.
	Delay     time.Duration
	DelayFrom string
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
		Err: o.err, MaybeStored: retry.MaybeStored(o.err) && o.operation != recallOperation,
		Class: o.decision.Class, Stop: stopReasons[o.decision.Stop],
		Delay: o.decision.Delay, DelayFrom: o.decision.Source.String(),
	}
	if a.Operation == "" {
		a.Operation = sendOperation
	}
	if o.waiting {
		a.Began, a.Duration, a.MaybeStored, a.Messages = o.ended, 0, false, 0
	}
	if logs {
		p.log.LogAttrs(context.Background(), slog.LevelDebug, "attempt failed", // as above
			slog.String("operation", a.Operation), slog.String("topic", a.Topic), slog.String("message_id", a.MessageID),
			slog.Int("attempt", a.Number), slog.String("endpoint", a.Endpoint),
			slog.String("class", a.Class.String()), slog.Any("error", a.Err),
			slog.String("stop", a.Stop.String()),
			slog.Duration("delay", a.Delay), slog.String("delay_from", a.DelayFrom))
	}
	if p.opts.OnAttempt == nil {
		return
	}
	defer p.recovered("OnAttempt panicked", a.MessageID)
	p.opts.OnAttempt(a)
}

// reportPanic tallies a panic of a function that package guard calls.
func (p *Producer) reportPanic(function string, value any, stack []byte) {
	p.events.Note(slog.LevelError, function+" panicked", nil, []slog.Attr{slog.Any("panic", value), slog.String("stack", string(stack))})
}

// recovered tallies a panic of a user's function. The caller must defer it.
func (p *Producer) recovered(event, messageID string) {
	if v := recover(); v != nil {
		p.events.Note(slog.LevelError, event, nil, []slog.Attr{
			slog.Any("panic", v), slog.String("message_id", messageID), slog.String("stack", string(debug.Stack())),
		})
	}
}
