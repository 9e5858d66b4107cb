package consumer

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// A Disposition says what became of a delivery.
type Disposition int

// What can become of a delivery.
const (
	Acked          Disposition = iota // consumed
	Retried                           // failed; delivered again after Outcome.Delay
	DeadLettered                      // failed for good: by the handler's wish, or in its last attempt
	LeaseLost                         // its invisible time ended first, and it is delivered again
	Released                          // not handled, or not to its end; given back for another consumer
	Unsettled                         // the server could not be told; delivered again when its invisible time ends
	PerhapsSettled                    // most likely settled as the handler wished, by a request whose answer was lost: the repeated one came too late
	Parked                            // failed in its last attempt; it and what follows in its message group wait for somebody to send them on
)

// String returns the name in lower case.
func (d Disposition) String() string {
	switch d {
	case Acked:
		return "acked"
	case Retried:
		return "retried"
	case DeadLettered:
		return "dead-lettered"
	case LeaseLost:
		return "lease lost"
	case Released:
		return "released"
	case Unsettled:
		return "unsettled"
	case PerhapsSettled:
		return "perhaps settled"
	case Parked:
		return "parked"
	}
	return "unknown"
}

// An Outcome is what became of one delivery.
type Outcome struct {
	Topic        string
	Group        string
	MessageID    string
	MessageGroup string
	Attempt      int // the delivery's number, 1 the first time

	Disposition Disposition
	Delay       time.Duration // of a retry: the server's, where it tells (Capabilities.RetryResult), else what it was asked for
	Duration    time.Duration // of the handler; 0 if it was not called

	// Err is what the handler returned; a [*PanicError] if it panicked.
	Err error

	// SettleErr is why the server could not be told, for Unsettled,
	// PerhapsSettled and LeaseLost as far as known.
	SettleErr error
}

// observe logs an outcome and hands it to the observer.
func (r *run) observe(o Outcome) {
	level, text := slog.LevelDebug, "delivery settled"
	switch o.Disposition {
	case DeadLettered:
		level, text = slog.LevelWarn, "message is a dead letter now"
	case Parked:
		level, text = slog.LevelWarn, "message group is parked now"
	case LeaseLost:
		level, text = slog.LevelWarn, "lease lost, message will be delivered again"
	case PerhapsSettled:
		level, text = slog.LevelInfo, "delivery was settled already, most likely: an answer was lost"
	case Unsettled:
		level, text = slog.LevelWarn, "delivery could not be settled"
	}
	if r.log.Enabled(r.detached, level) {
		r.log.LogAttrs(r.detached, level, text,
			slog.String("topic", o.Topic), slog.String("group", o.Group), slog.String("message_id", o.MessageID),
			slog.Int("attempt", o.Attempt), slog.String("disposition", o.Disposition.String()),
			slog.Duration("delay", o.Delay), slog.Duration("duration", o.Duration),
			slog.Any("error", o.Err), slog.Any("settle_error", o.SettleErr))
	}
	if r.opts.OnDelivery == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			r.logPanic(r.detached, "OnDelivery panicked", o.MessageID, v, debug.Stack())
		}
	}()
	r.opts.OnDelivery(o)
}

func (r *run) logPanic(ctx context.Context, text, messageID string, value any, stack []byte) {
	r.log.LogAttrs(ctx, slog.LevelError, text,
		slog.String("message_id", messageID), slog.String("panic", show(value)), slog.String("stack", string(stack)))
}
