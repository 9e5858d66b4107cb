// Package retry is the retry policy of a producer: it decides the step after an attempt. It is
// pure: it neither locks nor waits nor reads a clock.
package retry

import (
	"errors"
	"math"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Inputs are all inputs of the decision after an attempt.
type Inputs struct {
	// Attempts is the number of attempts, including this one. Waited is the number of pauses, after
	// throttles of other messages, that this message waited for in the queue. Throttles is the
	// number of throttled attempts plus Waited.
	Attempts, Throttles, Waited int

	// Unconnected is the number of attempts that reached no server that could store the message
	// (Unreached). They do not count in MaxAttempts.
	Unconnected int

	// MaxAttempts, MaxThrottles and MaxThrottleTime are the limits in effect.
	MaxAttempts     int
	MaxThrottles    int
	MaxThrottleTime time.Duration

	// ThrottledFor is the time from the first throttle to the end of this attempt.
	ThrottledFor time.Duration

	// Class is the class of the attempt's error alone. The other inputs can change it.
	Class tidegate.Class

	// RouteLost is true for an error that a cluster returns for a topic after its broker has
	// stopped. RouteGood is true if the server accepted an earlier send to the topic.
	RouteLost, RouteGood bool

	// NotConnected is true if this attempt reached no server that could store the message
	// (Unreached). UnconnectedFor is the time from the start of the first such attempt to the end
	// of this one, if all attempts between them were such. Spools is true if such a message moves
	// to Options.Spool.
	NotConnected   bool
	UnconnectedFor time.Duration
	Spools         bool

	// ProxyAlone is true if the attempt reached a RocketMQ proxy that had no connection to its
	// broker; NotConnected is true too. The topic may have other brokers, so the message does not
	// move to Options.Spool before MaxAttempts such attempts.
	ProxyAlone bool

	// Lapsed is true if the server rejected credentials that it had accepted before; NotConnected
	// is true too.
	Lapsed bool

	// Forbidden is true for an error of the permissions of the topic. Permitted is true if the
	// endpoint accepted an earlier send to the topic.
	Forbidden, Permitted bool

	// HalfMessage is true for the half message of a transaction that may have reached a server. It
	// is not retried.
	HalfMessage bool

	// RetryAfter is the delay that the server requested; negative means that the server requested
	// no further attempt. Zero means that the server requested nothing.
	RetryAfter time.Duration

	// ContextEnded is true if the caller's ctx ended, Closed if the producer was closed, and
	// TransportClosed if the transport was closed.
	ContextEnded, Closed, TransportClosed bool

	// PolicyDelay is the delay from Options.Backoff for a throttled attempt, or from Options.Pacing
	// for a transient failure.
	PolicyDelay time.Duration

	// AtOnce is the number of transient failures with an immediate retry.
	AtOnce int

	// Elapsed is the time from the end of the attempt to the decision.
	Elapsed time.Duration

	// Remaining is the time from the end of the attempt to the deadline of ctx, if HasDeadline is
	// true. Floor is the shortest time for an attempt.
	HasDeadline      bool
	Remaining, Floor time.Duration
}

// A Decision is the step after an attempt. If Class is tidegate.ClassOK, the send succeeded; if
// Stop is set, the send failed; otherwise another attempt follows after Delay. The zero value is
// the decision about a success.
type Decision struct {
	Class  tidegate.Class
	Stop   Stop
	Delay  time.Duration // from the end of the attempt to the next at the same server
	Source Source        // of Delay

	// Needed is the time that the next attempt would have needed, including its delay. Zero unless
	// Stop is Deadline.
	Needed time.Duration
}

// Decide returns the step after an attempt. Equal inputs give equal decisions.
func Decide(in Inputs) Decision {
	d := Decision{Class: in.class()}
	switch d.Class {
	case tidegate.ClassOK:
		return d
	case tidegate.ClassCancelled:
		d.Stop = Context
		if !in.ContextEnded {
			d.Stop = Closed
		}
		return d
	case tidegate.ClassPermanent:
		d.Stop = Permanent
		if in.Forbidden && in.Permitted && in.Spools {
			d.Stop = Spool
		}
		return d
	}
	if in.HalfMessage {
		d.Stop = HalfMessage
		return d
	}
	if in.RetryAfter < 0 {
		d.Stop = PushedBack
		return d
	}
	delay, source := in.delay(d.Class)
	switch stop := in.exhausted(d.Class, delay); {
	case stop != Continue:
		d.Stop = stop
	case in.HasDeadline && Sum(delay, in.Floor) > in.Remaining:
		d.Stop, d.Needed = Deadline, Sum(delay, in.Floor)
	default:
		d.Delay, d.Source = delay, source
	}
	return d
}

// class returns the class of the error, corrected by facts that only the producer has.
func (in *Inputs) class() tidegate.Class {
	switch {
	case in.Class == tidegate.ClassOK:
		return tidegate.ClassOK
	case in.ContextEnded || in.Closed:
		return tidegate.ClassCancelled
	case in.Class == tidegate.ClassCancelled && !in.TransportClosed:
		return tidegate.ClassTransient // the transport cancelled the request, not the caller
	case in.Class == tidegate.ClassPermanent && in.RouteGood && in.RouteLost:
		return tidegate.ClassTransient
	}
	return in.Class
}

// maxUnconnected bounds the time without a connection if ctx has no deadline.
const maxUnconnected = 2 * time.Minute

// transients returns the number of attempts that were not throttled.
func (in *Inputs) transients() int { return in.Attempts - (in.Throttles - in.Waited) }

// paced returns the number of transient failures that the wait grows with. An outage before an
// attempt with a connection does not delay the retry of that attempt.
func (in *Inputs) paced() int {
	if in.NotConnected {
		return in.transients()
	}
	return in.transients() - in.Unconnected
}

// delay returns the wait before the next attempt and the source of the wait.
func (in *Inputs) delay(class tidegate.Class) (d time.Duration, source Source) {
	switch {
	case class == tidegate.ClassThrottled:
		d, source = in.PolicyDelay, FromBackoff
	case in.paced() > in.AtOnce:
		d, source = in.PolicyDelay, FromPacing
	}
	if in.RetryAfter > d {
		d, source = in.RetryAfter, FromPushBack
	}
	if d <= 0 {
		return 0, NoDelay
	}
	return max(d, in.Elapsed), source
}

// exhausted returns the limit that forbids another attempt, or Continue.
func (in *Inputs) exhausted(class tidegate.Class, delay time.Duration) Stop {
	if in.NotConnected && class == tidegate.ClassTransient {
		if in.Spools && (!in.ProxyAlone || in.Attempts >= in.MaxAttempts) || !in.HasDeadline && Sum(in.UnconnectedFor, delay) >= maxUnconnected {
			return Exhausted
		}
		return Continue
	}
	if in.MaxThrottles == 0 && in.MaxThrottleTime == 0 {
		if in.Attempts-in.Unconnected+in.Waited >= in.MaxAttempts {
			return Exhausted
		}
		return Continue
	}
	switch {
	case class == tidegate.ClassThrottled && in.MaxThrottles > 0 && in.Throttles > in.MaxThrottles,
		class == tidegate.ClassThrottled && in.MaxThrottleTime > 0 && delay > in.MaxThrottleTime-in.ThrottledFor:
		return Throttled
	case in.transients()-in.Unconnected >= in.MaxAttempts:
		return Exhausted
	}
	return Continue
}

// Unreached reports whether a failed attempt certainly reached no server that could store the
// message: it never had a connection, or the server rejected credentials that it had accepted
// before.
func Unreached(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	return ok && (e.NotConnected || e.Lapsed)
}

// MaybeStored reports whether a failed attempt may have been stored. It is true for an error that
// is not a [tidegate.Error].
func MaybeStored(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return err != nil
	}
	switch e.Code {
	case protocol.CodeRequestTimeout, protocol.CodeProxyTimeout,
		protocol.CodeMasterPersistenceTimeout, protocol.CodeSlavePersistenceTimeout:
		return true
	}
	return e.MaybeStored
}

// lastMargin is the longest time that the last attempt leaves before the deadline.
const lastMargin = 50 * time.Millisecond

// AttemptShare returns the time limit of the next attempt. Without a deadline it is limit.
// Otherwise it is the time left until the deadline, divided by the attempts left, so that a server
// that never responds leaves time for the attempts after it.
//
// The last attempt leaves a twentieth of the time before the deadline, at most lastMargin. So it
// ends with its own result, which reports whether a server had the message. The end of ctx does not
// report that.
//
// The result is at least floor and at most limit. limit takes precedence.
func AttemptShare(attemptsLeft int, limit, floor, left time.Duration, hasDeadline bool) time.Duration {
	if !hasDeadline {
		return limit
	}
	share := left / time.Duration(max(1, attemptsLeft))
	if attemptsLeft <= 1 {
		share = left - min(left/20, lastMargin)
	}
	return min(limit, max(share, floor))
}

// Sum returns the sum of two times that are not negative, at most the longest time.
func Sum(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// A Stop is the reason why a send ended without success. Package producer exports and explains it.
// Decide does not return Invalid, Limiter, Full and Budget.
type Stop uint8

// The reasons.
const (
	Continue Stop = iota
	Invalid
	Permanent
	Exhausted
	Throttled
	PushedBack
	Deadline
	Limiter
	Context
	Closed
	Full
	Budget
	HalfMessage
	Spool
)

// String returns the reason in words.
func (s Stop) String() string {
	words := [...]string{
		Continue:    "not stopped",
		Invalid:     "invalid message",
		Permanent:   "permanent failure",
		Exhausted:   "attempts exhausted",
		Throttled:   "throttled too often",
		PushedBack:  "server asked not to retry",
		Deadline:    "deadline too close",
		Limiter:     "rejected by the limiter",
		Context:     "context ended",
		Closed:      "closed",
		Full:        "producer full",
		Budget:      "retry budget spent",
		HalfMessage: "half messages are not retried",
		Spool:       "rejected by the spool",
	}
	if int(s) >= len(words) {
		return "unknown"
	}
	return words[s]
}

// A Source is the origin of the wait before the next attempt.
type Source uint8

// The sources.
const (
	NoDelay      Source = iota // there is no wait, or no next attempt
	FromBackoff                // the backoff, after a throttled attempt
	FromPushBack               // the server requested a longer wait than the backoff or the pacing
	FromPacing                 // the pacing, after repeated transient failures
)

// String returns the source in words, and an empty string for NoDelay.
func (s Source) String() string {
	return [...]string{NoDelay: "", FromBackoff: "backoff", FromPushBack: "push-back", FromPacing: "pacing"}[s]
}
