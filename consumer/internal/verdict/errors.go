package verdict

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// A RetryIn is the error of consumer.RetryIn.
type RetryIn struct {
	Delay time.Duration
	Err   error // may be nil
}

// Error returns the text of the failure.
func (e *RetryIn) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("retry after %v", e.Delay)
	}
	return e.Err.Error()
}

// Unwrap returns the failure.
func (e *RetryIn) Unwrap() error { return e.Err }

// A Snooze is the error of consumer.Snooze.
type Snooze struct{ Delay time.Duration }

// Error returns the delay in words.
func (e *Snooze) Error() string { return fmt.Sprintf("postponed for %v", e.Delay) }

// A DeadLetter is the error of consumer.DeadLetterNow.
type DeadLetter struct{ Err error } // may be nil

// Error returns the text of the failure.
func (e *DeadLetter) Error() string {
	if e.Err == nil {
		return "dead letter requested by the handler"
	}
	return e.Err.Error()
}

// Unwrap returns the failure.
func (e *DeadLetter) Unwrap() error { return e.Err }

// A Reconsume is the error of consumer.Reconsume.
type Reconsume struct {
	Verdict transport.Verdict
	Err     error // may be nil
}

// Error returns the text of the failure.
func (e *Reconsume) Error() string {
	if e.Err == nil {
		return "reconsume later"
	}
	return e.Err.Error()
}

// Unwrap returns the failure.
func (e *Reconsume) Unwrap() error { return e.Err }

// levels are RocketMQ's delay levels, the first of them level 1.
var levels = [...]time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	1 * time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute,
	7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
	1 * time.Hour, 2 * time.Hour,
}

// levelDelay returns the delay of one of RocketMQ's delay levels. A level below 1 means 1, one
// above 18 means 18.
func levelDelay(level int) time.Duration { return levels[min(max(level, 1), len(levels))-1] }

// defaultNegativeAckDelay is the delay of a negative acknowledgement of Apache Pulsar's clients.
const defaultNegativeAckDelay = time.Minute

// instead returns the delay of a retry in the message's own topic after an attempt, where the
// server does not take v.
func instead(v transport.Verdict, attempt int) time.Duration {
	switch {
	case v.Delay != 0:
		return max(v.Delay, 0)
	case v.Kind == transport.NegativeAck:
		return defaultNegativeAckDelay
	case v.Level > 0:
		return levelDelay(v.Level)
	}
	return levelDelay(attempt)
}
