package producer

import (
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Inputs are everything that the decision after an attempt depends on. They
// contain no pointers, so a program can record them, for example as JSON, and
// replay them through [Decide].
type Inputs struct {
	// Attempts counts the attempts made, this one included. Throttles counts the
	// throttled ones, and those throttled requests of other messages that this one
	// waited for in the queue. Waited counts the latter alone.
	Attempts, Throttles, Waited int

	// MaxAttempts, MaxThrottles and MaxThrottleTime are the limits that hold.
	MaxAttempts     int
	MaxThrottles    int
	MaxThrottleTime time.Duration

	// ThrottledFor is the time from the first throttle to the end of this attempt.
	ThrottledFor time.Duration

	// Class is the class of the attempt's error by itself. The other inputs can change it.
	Class transport.Class

	// RouteLost is true for an error that a cluster returns for a topic whose
	// broker has just stopped. RouteGood is true after an accepted send to the topic.
	RouteLost, RouteGood bool

	// HalfMessage is true for the half message of a transaction, which is not retried.
	HalfMessage bool

	// BudgetSpent is true if Options.Budget refused the retry.
	BudgetSpent bool

	// RetryAfter is the delay that the server asked for. Negative: do not retry.
	RetryAfter time.Duration

	// ContextEnded is true if the caller's ctx ended, Closed if the producer was
	// closed, TransportClosed if the transport was.
	ContextEnded, Closed, TransportClosed bool

	// PolicyDelay is the delay drawn from Options.Backoff for a throttled attempt,
	// or from Options.Pacing for a transient failure.
	PolicyDelay time.Duration

	// AtOnce is the number of transient failures that are retried without pacing.
	AtOnce int

	// Elapsed is the time from the end of the attempt to the decision.
	Elapsed time.Duration

	// Remaining is the time from the end of the attempt to the deadline of ctx, if
	// HasDeadline is true. Floor is the least time that an attempt is given.
	HasDeadline      bool
	Remaining, Floor time.Duration
}

// A Decision is what follows an attempt: success if Class is transport.OK, the
// end of the send if Stop is set, else another attempt after Delay.
type Decision struct {
	Class       transport.Class
	Stop        StopReason
	Delay       time.Duration // from the end of the attempt to the next
	DelaySource DelaySource

	// Needed is the time that the next attempt would have needed, its delay
	// included. Zero unless Stop is StopDeadline.
	Needed time.Duration
}

// Decide is the whole policy of the producer. It is a pure function: the same
// inputs give the same decision.
func Decide(in Inputs) Decision {
	d := Decision{Class: in.class()}
	switch d.Class {
	case transport.OK:
		return d
	case transport.Cancelled:
		d.Stop = StopContext
		if !in.ContextEnded {
			d.Stop = StopClosed
		}
		return d
	case transport.Permanent:
		d.Stop = StopPermanent
		return d
	}
	if in.HalfMessage {
		d.Stop = StopHalfMessage
		return d
	}
	if in.RetryAfter < 0 {
		d.Stop = StopPushedBack
		return d
	}
	delay, source := in.delay(d.Class)
	switch stop := in.exhausted(d.Class, delay); {
	case stop != NotStopped:
		d.Stop = stop
	case in.BudgetSpent:
		d.Stop = StopBudget
	case in.HasDeadline && delay+in.Floor > in.Remaining:
		d.Stop, d.Needed = StopDeadline, delay+in.Floor
	default:
		d.Delay, d.DelaySource = delay, source
	}
	return d
}

// class is the class of the error, corrected by what only the producer knows.
func (in *Inputs) class() transport.Class {
	switch {
	case in.Class == transport.OK:
		return transport.OK
	case in.ContextEnded || in.Closed:
		return transport.Cancelled
	case in.Class == transport.Cancelled && !in.TransportClosed:
		return transport.Transient // the transport cancelled the request, the caller did not
	case in.Class == transport.Permanent && in.RouteGood && in.RouteLost:
		return transport.Transient
	}
	return in.Class
}

// transients is the number of attempts that were not throttled.
func (in *Inputs) transients() int { return in.Attempts - (in.Throttles - in.Waited) }

// delay returns the wait before the next attempt and its source.
func (in *Inputs) delay(class transport.Class) (d time.Duration, source DelaySource) {
	switch {
	case class == transport.Throttled:
		d, source = in.PolicyDelay, BackoffDelay
	case in.transients() > in.AtOnce:
		d, source = in.PolicyDelay, PacingDelay
	}
	if in.RetryAfter > d {
		d, source = in.RetryAfter, PushBackDelay
	}
	if d <= 0 {
		return 0, NoDelay
	}
	return max(d, in.Elapsed), source
}

// exhausted returns the limit that forbids another attempt, NotStopped if none does.
func (in *Inputs) exhausted(class transport.Class, delay time.Duration) StopReason {
	if in.MaxThrottles == 0 && in.MaxThrottleTime == 0 {
		if in.Attempts+in.Waited >= in.MaxAttempts {
			return StopExhausted
		}
		return NotStopped
	}
	switch {
	case class == transport.Throttled && in.MaxThrottles > 0 && in.Throttles > in.MaxThrottles,
		class == transport.Throttled && in.MaxThrottleTime > 0 && delay > in.MaxThrottleTime-in.ThrottledFor:
		return StopThrottled
	case in.transients() >= in.MaxAttempts:
		return StopExhausted
	}
	return NotStopped
}

// ofError fills in the inputs that the attempt's error gives.
func (in *Inputs) ofError(err error) {
	in.Class = transport.Classify(err)
	in.TransportClosed = errors.Is(err, tidegate.ErrClosed)
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		in.RetryAfter = e.RetryAfter
		// A cluster whose broker has just stopped returns these for topics that the
		// broker served a minute ago. Without an endpoint the transport refused the
		// message before it was sent, and will again.
		in.RouteLost = e.Endpoint != "" && (e.Code == tidegate.CodeTopicNotFound || e.Code == tidegate.CodeMessagePropertyConflict)
	}
}

// maybeStored reports whether a failed attempt may have been stored. An error
// that is no [tidegate.Error] leaves it open.
func maybeStored(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return err != nil
	}
	switch e.Code {
	case tidegate.CodeRequestTimeout, tidegate.CodeProxyTimeout,
		tidegate.CodeMasterPersistenceTimeout, tidegate.CodeSlavePersistenceTimeout:
		return true
	}
	return e.MaybeStored
}
