package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/consumer/internal/decision"
)

var (
	// ErrLeaseLost is the cause of a handler's context when the consumer no longer owns the
	// message: the invisible time ended and could not be extended, or the server rejected the
	// receipt handle. The server delivers the message again. The handler's result is ignored.
	ErrLeaseLost = errors.New("the delivery's invisible time is over")

	// ErrShutdown is the cause of a handler's context when Run's ctx ended and
	// the handler took longer than PushOptions.ShutdownTimeout to return.
	ErrShutdown = errors.New("the consumer is shutting down")
)

// A PanicError is a panic of a handler, or of the error that it returned, for example because of a
// nil pointer in the error. It is a failure like any other: the message is delivered again.
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

// RetryAfter returns an error with which a handler has the message delivered again after d,
// instead of the retry schedule's delay. It may be wrapped or joined. The attempt counts: after
// the last one the message is given up all the same. Where a tidegate broker has address settings
// about redelivery for the message's topic, their delay holds and Outcome.Delay reports it. A
// negative d means 0; more than 12 h, which no server accepts, means 12 h. err, which may be
// nil, is the failure.
func RetryAfter(d time.Duration, err error) error {
	return &decision.RetryAfter{Delay: max(0, d), Err: err}
}

// RetryLevel is [RetryAfter] with the delay of one of RocketMQ's 18 delay levels: 1s 5s 10s 30s 1m
// 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h. A level below 1 means 1, one above 18 means 18.
func RetryLevel(level int, err error) error {
	return RetryAfter(decision.LevelDelay(level), err)
}

// Snooze returns an error with which a handler postpones the message: it is delivered again after d
// with the same attempt number. It may be wrapped or joined. Servers without
// [transport.Capabilities].Snooze, such as RocketMQ, cannot do that: the message is delivered again
// after d with the next attempt number, and Outcome.AttemptSpent reports it. A negative d means 0;
// more than 12 h means 12 h.
func Snooze(d time.Duration) error { return &decision.Snooze{Delay: max(0, d)} }

// DeadLetter returns an error with which a handler makes the message a dead letter at once, even if
// attempts are left. The error may be wrapped or joined. The text of err is the reason; err may be
// nil.
//
// In the last attempt a FIFO group of a tidegate broker blocks or parks the message if the group is
// configured so. Outcome.Disposition is Retried or Parked then.
func DeadLetter(err error) error { return &decision.DeadLetter{Err: err} }
