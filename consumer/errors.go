package consumer

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrLeaseLost is the cause of a handler's context when the message is not
	// its own any more: the invisible time ended and could not be extended,
	// or the server says that the receipt handle is not valid. The message
	// will be delivered again, or was. What the handler returns is ignored.
	ErrLeaseLost = errors.New("the delivery's invisible time is over")

	// ErrShutdown is the cause of a handler's context when Run's ctx ended and
	// the handler took longer than PushOptions.ShutdownTimeout to return.
	ErrShutdown = errors.New("the consumer is shutting down")
)

// A PanicError is a panic of a handler, or of the error that it returned: a nil
// pointer in an error does that when it is asked for its text. It is a failure
// like any other: the message is delivered again.
type PanicError struct {
	Value any    // that the handler panicked with; a text where that value's own methods panic, or end the goroutine
	Stack []byte // of the handler
}

// Error tells the value; the stack is in Stack.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

type retryAfter struct {
	delay time.Duration
	err   error
}

func (e *retryAfter) Error() string {
	if e.err == nil {
		return fmt.Sprintf("retry after %v", e.delay)
	}
	return e.err.Error()
}

func (e *retryAfter) Unwrap() error { return e.err }

// RetryAfter returns an error with which a handler has the message delivered
// again after d, instead of the ladder's delay. It may be wrapped. The attempt
// counts: after the last one the message is given up all the same. Where a
// tidegate broker has address settings about redelivery for the message's topic, the
// delay is theirs whatever d is, and Outcome.Delay tells it. A
// negative d stands for 0, more than 12 h, which no server takes, for 12 h; err, which may be nil, is the failure.
func RetryAfter(d time.Duration, err error) error { return &retryAfter{max(0, d), err} }

type deadLetter struct{ err error }

func (e *deadLetter) Error() string {
	if e.err == nil {
		return "dead letter by the handler's wish"
	}
	return e.err.Error()
}

func (e *deadLetter) Unwrap() error { return e.err }

// DeadLetter returns an error with which a handler makes the message a dead
// letter at once, whatever attempts are left, because another would fail too.
// It may be wrapped. The text of err, which may be nil, is the reason. In the last
// attempt a FIFO group of a tidegate broker that blocks or parks does that
// instead, and the Outcome says DeadLettered all the same.
func DeadLetter(err error) error { return &deadLetter{err} }
