package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
)

// A Disposition is the end of a delivery. The zero value is none of them. Its String method returns
// it in lower-case words, for example "lease lost".
type Disposition = verdict.Disposition

// The dispositions.
const (
	// The message was consumed.
	Acked = verdict.Acked
	// The message failed and is delivered again after Outcome.Delay.
	Retried = verdict.Retried
	// The message failed in its last attempt, or the handler returned [DeadLetterNow].
	DeadLettered = verdict.DeadLettered
	// The invisible time ended, or the server rejected the receipt handle. The message is delivered
	// again.
	LeaseLost = verdict.LeaseLost
	// The message was returned to the queue for another consumer, because this consumer stops, is
	// paused, or its kill switch tripped.
	Released = verdict.Released
	// The server could not be reached. The message is delivered again when its invisible time ends.
	Unsettled = verdict.Unsettled
	// The delivery is probably settled, by a request whose response was lost. The repeated request
	// was sent too late to confirm it.
	PerhapsSettled = verdict.PerhapsSettled
	// The message failed in its last attempt. Its message group waits for an operator.
	Parked = verdict.Parked
	// The handler or the kill switch postponed the message. It is delivered again after
	// Outcome.Delay with the same attempt number.
	Snoozed = verdict.Snoozed
	// The message failed and is delivered as a new message of the retry topic after Outcome.Delay.
	Reconsumed = verdict.Reconsumed
	// The message failed in its last attempt and was acknowledged because of [policy.Discard].
	Discarded = verdict.Discarded
)

// An Outcome describes one delivery that has ended.
type Outcome struct {
	// Delivery is the delivery as it was received, with its body. It is read-only, except for the
	// changes that the handler itself has made to its Properties.
	Delivery *tidegate.Delivery

	Disposition Disposition
	Delay       time.Duration // before the next delivery: as the server reports it, or as requested; RocketMQ takes 2.5 s to 7 s longer
	Duration    time.Duration // of the handler, which may be that of a batch; 0 if it was not called

	// AttemptSpent is true if the handler returned Snooze and the server counted the attempt
	// because it does not support snoozes.
	AttemptSpent bool

	// Err is the handler's error; a [*PanicError] if it panicked.
	Err error

	// SettleErr is the reason of Unsettled, PerhapsSettled and LeaseLost, if it is known. It is
	// also set if the message was retried because the server rejected a DeadLetterNow or a
	// Reconsume.
	SettleErr error
}

// outcome describes a delivery that was concluded.
func (r *run) outcome(it *item) Outcome {
	return Outcome{
		Delivery: &it.current, Disposition: it.disposition, Delay: it.delay, Duration: it.duration,
		AttemptSpent: it.Decision.Spent && it.disposition == Retried, Err: it.result.err, SettleErr: it.settleErr,
	}
}

// observe logs the end of a delivery and calls the program's hooks. Lines above the debug level are
// tallied, because deliveries can end in this way in any number.
func (r *run) observe(it *item) {
	level, text := levelOf(it.disposition)
	if r.log.Enabled(r.detached, level) {
		o := r.outcome(it)
		of := []slog.Attr{slog.String("topic", o.Delivery.Topic), slog.String("group", r.sub.Group)}
		detail := []slog.Attr{
			slog.String("message_id", o.Delivery.ID), slog.Int("attempt", o.Delivery.Attempt), slog.String("disposition", o.Disposition.String()),
			slog.Duration("delay", o.Delay), slog.Duration("duration", o.Duration), errorAttr("error", o.Err), errorAttr("settle_error", o.SettleErr),
		}
		if level > slog.LevelDebug {
			r.events.Note(level, text, of, detail)
		} else {
			r.log.LogAttrs(r.detached, level, text, slices.Concat(of, detail)...)
		}
	}
	if it.Decision.Spent {
		r.spent.Do(func() {
			r.log.Warn("the server counts the attempts of postponed messages", "topic", it.current.Topic, "group", r.sub.Group, "endpoint", it.current.Endpoint)
		})
	}
	if r.opts.OnDelivery != nil {
		r.guard("OnDelivery panicked", it.current.ID, func() { r.opts.OnDelivery(r.outcome(it)) })
	}
}

func levelOf(d Disposition) (slog.Level, string) {
	switch d {
	case DeadLettered:
		return slog.LevelWarn, "message became a dead letter"
	case Discarded:
		return slog.LevelWarn, "message discarded after its last attempt"
	case Parked:
		return slog.LevelWarn, "message group parked"
	case LeaseLost:
		return slog.LevelWarn, "lease lost; the message will be redelivered"
	case PerhapsSettled:
		return slog.LevelInfo, "delivery possibly settled by an attempt whose response was lost"
	case Unsettled:
		return slog.LevelWarn, "delivery not settled"
	}
	return slog.LevelDebug, "delivery settled"
}

// warn tallies a warning about a delivery.
func (r *run) warn(text string, it *item, err error) {
	r.events.Note(slog.LevelWarn, text,
		[]slog.Attr{slog.String("topic", it.current.Topic), slog.String("group", r.sub.Group)},
		[]slog.Attr{slog.String("message_id", it.current.ID), slog.Any("error", err)})
}

// guard calls a hook of the program, and logs a panic in it.
func (r *run) guard(text, messageID string, hook func()) {
	defer func() {
		if v := recover(); v != nil {
			r.logPanic(r.detached, text, messageID, v, debug.Stack())
		}
	}()
	hook()
}

// reportPanic tallies a panic of a function that package guard calls.
func (r *run) reportPanic(function string, value any, stack []byte) {
	r.events.Note(slog.LevelError, function+" panicked", []slog.Attr{slog.String("group", r.sub.Group)},
		[]slog.Attr{slog.String("panic", verdict.Show(value)), slog.String("stack", string(stack))})
}

// errorAttr returns an attribute that logs omit if err is nil.
func errorAttr(key string, err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	return slog.Any(key, err)
}

func (r *run) logPanic(ctx context.Context, text, messageID string, value any, stack []byte) {
	r.log.LogAttrs(ctx, slog.LevelError, text,
		slog.String("message_id", messageID), slog.String("panic", verdict.Show(value)), slog.String("stack", string(stack)))
}

// A StopReport counts the deliveries that ended after Run's context had ended.
type StopReport struct {
	Acked     int           // consumed
	Retried   int           // failed, postponed, discarded or dead letters
	Released  int           // returned to the queue, except those in Cancelled
	Cancelled int           // returned to the queue because their handlers did not finish in time
	Unsettled int           // LeaseLost, Unsettled or PerhapsSettled; most are delivered again
	Took      time.Duration // from the end of Run's context to the return of Run
}

func (s *StopReport) count(it *item) {
	switch it.disposition {
	case Acked:
		s.Acked++
	case Retried, DeadLettered, Parked, Snoozed, Reconsumed, Discarded:
		s.Retried++
	case Released:
		if it.cancelled {
			s.Cancelled++
		} else {
			s.Released++
		}
	default:
		s.Unsettled++
	}
}

func (h *hand) stopReport() StopReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.report
}

var (
	// ErrLeaseLost is the cause of a handler's context when the consumer no longer owns the
	// message: the invisible time ended and could not be extended, or the server rejected the
	// receipt handle. The server delivers the message again. The handler's result is ignored.
	ErrLeaseLost = errors.New("the invisible time of the delivery has ended")

	// ErrShutdown is the cause of a handler's context when the handler is still running nine tenths
	// of PushOptions.ShutdownTimeout after the end of Run's ctx.
	ErrShutdown = errors.New("the consumer is shutting down")
)

// A PanicError is a panic of a handler, or of a method of the error that the handler returned, for
// example of a typed nil. It is a failure like any other: the message is retried.
type PanicError struct {
	// Value is the value of the panic. It is a text if the value's own methods panic or end the
	// goroutine.
	Value any
	Stack []byte // of the handler
}

// Error returns the value of the panic; the stack is in Stack.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// RetryIn returns an error for a handler that retries the message after d instead of the retry
// schedule's delay. The attempt counts, and after the last attempt the message is not retried. The
// returned error may be wrapped or joined. err is the failure; it may be nil.
//
// Address settings of a tidegate broker about redelivery override d, and Outcome.Delay reports
// their delay. A negative d means 0. A d of more than 12 h, which no server accepts, means 12 h.
func RetryIn(d time.Duration, err error) error {
	return &verdict.RetryIn{Delay: max(0, d), Err: err}
}

// Snooze returns an error for a handler that postpones the message: it is delivered again after d
// with the same attempt number. The returned error may be wrapped or joined. A negative d means 0,
// and more than 12 h means 12 h.
//
// Servers without [transport.Capabilities].Snooze, such as RocketMQ, deliver the message after d
// with the next attempt number. Outcome.AttemptSpent is true then.
func Snooze(d time.Duration) error { return &verdict.Snooze{Delay: max(0, d)} }

// DeadLetterNow returns an error for a handler that makes the message a dead letter at once, even
// if attempts are left. The returned error may be wrapped or joined. The text of err is the reason
// of the dead letter; err may be nil.
//
// If this is the message's last attempt, the on_exhausted setting of a FIFO group of a tidegate
// broker applies instead. It can block or park the message group; Outcome.Disposition is [Retried]
// or [Parked] then.
func DeadLetterNow(err error) error { return &verdict.DeadLetter{Err: err} }
