package producer

import (
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// A DelaySource says where the wait before the next attempt comes from.
type DelaySource int

// The sources of a delay.
const (
	NoDelay      DelaySource = iota // none: the next attempt is made at once, or there is none
	FromBackoff                     // the backoff policy, after a throttled attempt
	FromPushBack                    // the server asked for it, and for longer than the policy
	FromPacing                      // Options.Pacing, after a transient failure
)

// String returns the lower-case name.
func (s DelaySource) String() string {
	switch s {
	case NoDelay:
		return "none"
	case FromBackoff:
		return "backoff"
	case FromPushBack:
		return "push-back"
	case FromPacing:
		return "pacing"
	}
	return "unknown"
}

// A Reason says why a send stopped without success.
type Reason int

// The reasons to stop.
const (
	NotStopped     Reason = iota // it goes on, or succeeded
	Invalid                      // the message can never be sent; no attempt was made
	Permanent                    // the same request would fail again
	Exhausted                    // MaxAttempts were made
	ThrottledOut                 // more than MaxThrottles attempts were throttled
	PushedBack                   // the server asked not to try again
	LimiterRefused               // Options.Limiter gave an error
	Ended                        // ctx ended
	Closed                       // the producer or its transport was closed
	TooManyPending               // MaxPending asynchronous sends are under way; no attempt was made
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case NotStopped:
		return "not stopped"
	case Invalid:
		return "invalid message"
	case Permanent:
		return "permanent failure"
	case Exhausted:
		return "attempts exhausted"
	case ThrottledOut:
		return "throttled too often"
	case PushedBack:
		return "server asked not to retry"
	case LimiterRefused:
		return "refused by the limiter"
	case Ended:
		return "context ended"
	case Closed:
		return "closed"
	case TooManyPending:
		return "too many sends under way"
	}
	return "unknown"
}

// limits are what bounds one send.
type limits struct {
	maxAttempts  int
	maxThrottles int // 0: throttled attempts count in maxAttempts
	backoff      backoff.Policy
	pacing       backoff.Policy // nil: none
}

// state is how far a send has come; the attempt just made is counted.
type state struct {
	limits    limits
	attempts  int  // made, throttled ones included
	throttles int  // of them
	routeGood bool // an earlier send to the topic was accepted
	ended     bool // the caller's ctx ended, or the producer was closed
	closed    bool // the latter
}

// A decision is what to do after an attempt: stop if reason is set, and
// otherwise try again after delay.
type decision struct {
	class  transport.Class
	reason Reason
	delay  time.Duration
	source DelaySource
}

// classify is transport.Classify with what only the producer knows: whether
// its own ctx ended, and whether the topic was there before. A cluster whose
// broker has just died answers TOPIC_NOT_FOUND and
// MESSAGE_PROPERTY_CONFLICT_WITH_TYPE for topics that it served a minute ago.
func classify(s state, err error) transport.Class {
	class := transport.Classify(err)
	switch {
	case class == transport.OK:
		return class
	case s.ended:
		return transport.Cancelled
	case class == transport.Cancelled && !errors.Is(err, tidegate.ErrClosed):
		return transport.Transient // something below was cancelled, the caller was not
	case class == transport.Permanent && s.routeGood && routeLost(err):
		return transport.Transient
	}
	return class
}

func routeLost(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	return ok && (e.Code == tidegate.CodeTopicNotFound || e.Code == tidegate.CodeMessagePropertyConflict)
}

// decide is the whole of the producer's policy: what to do after an attempt
// that returned err. It depends on its arguments only.
func decide(s state, err error) decision {
	d := decision{class: classify(s, err)}
	switch d.class {
	case transport.OK:
		return d
	case transport.Cancelled:
		d.reason = Ended
		if s.closed || !s.ended {
			d.reason = Closed
		}
		return d
	case transport.Permanent:
		d.reason = Permanent
		return d
	}
	pushBack := retryAfter(err)
	if pushBack < 0 {
		d.reason = PushedBack
		return d
	}
	if d.reason = exhausted(s, d.class); d.reason != NotStopped {
		return d
	}
	switch transients := s.attempts - s.throttles; {
	case d.class == transport.Throttled:
		d.delay, d.source = s.limits.backoff.Delay(s.throttles-1), FromBackoff
	case s.limits.pacing != nil && transients >= 2:
		d.delay, d.source = s.limits.pacing.Delay(transients-2), FromPacing
	}
	if pushBack > d.delay {
		d.delay, d.source = pushBack, FromPushBack
	}
	if d.delay <= 0 {
		d.delay, d.source = 0, NoDelay
	}
	return d
}

// exhausted returns why there may be no further attempt, if so.
func exhausted(s state, class transport.Class) Reason {
	if s.limits.maxThrottles == 0 {
		if s.attempts >= s.limits.maxAttempts {
			return Exhausted
		}
		return NotStopped
	}
	switch {
	case class == transport.Throttled && s.throttles > s.limits.maxThrottles:
		return ThrottledOut
	case s.attempts-s.throttles >= s.limits.maxAttempts:
		return Exhausted
	}
	return NotStopped
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// maybeStored reports whether a failed attempt may have been stored. An error
// that says nothing about it leaves it open.
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

// attemptTimeout is the share of the deadline that the next attempt gets:
// what is left, divided by the attempts left, so that an endpoint that never
// answers cannot eat the time of the attempts after it. hasDeadline false
// stands for all the time in the world.
func attemptTimeout(s state, limit time.Duration, left time.Duration, hasDeadline bool) time.Duration {
	if !hasDeadline {
		return limit
	}
	counted := s.attempts
	if s.limits.maxThrottles > 0 {
		counted -= s.throttles
	}
	slice := left / time.Duration(max(1, s.limits.maxAttempts-counted))
	return min(limit, max(slice, minAttemptTimeout))
}
