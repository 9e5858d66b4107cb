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
	return &decision.RetryIn{Delay: max(0, d), Err: err}
}

// Snooze returns an error for a handler that postpones the message: it is delivered again after d
// with the same attempt number. The returned error may be wrapped or joined. A negative d means 0,
// and more than 12 h means 12 h.
//
// Servers without [transport.Capabilities].Snooze, such as RocketMQ, deliver the message after d
// with the next attempt number. Outcome.AttemptSpent is true then.
func Snooze(d time.Duration) error { return &decision.Snooze{Delay: max(0, d)} }

// DeadLetterNow returns an error for a handler that makes the message a dead letter at once, even
// if attempts are left. The returned error may be wrapped or joined. The text of err is the reason
// of the dead letter; err may be nil.
//
// If this is the message's last attempt, the on_exhausted setting of a FIFO group of a tidegate
// broker applies instead. It can block or park the message group; Outcome.Disposition is [Retried]
// or [Parked] then.
func DeadLetterNow(err error) error { return &decision.DeadLetter{Err: err} }
