package retry

import (
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Limits bound one send.
type Limits struct {
	*Bounds
	MaxAttempts int
	Backoff     backoff.Policy // after throttled attempts
}

// Bounds are the limits that all sends of a producer share.
type Bounds struct {
	MaxThrottles    int // negative: no limit
	MaxThrottleTime time.Duration
	Pacing          backoff.Policy // nil means DefaultPacing from the fourth failure on
	Attempt         time.Duration  // the longest attempt
	Floor           time.Duration  // the shortest
}

// DefaultPacing is the pacing from the fourth transient failure on.
var DefaultPacing = backoff.Exponential{Initial: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, Max: 5 * time.Second}

const (
	// retriesAtOnce is the number of transient failures with an immediate retry. With Bounds.Pacing
	// it is 1.
	retriesAtOnce = 3

	// unconnectedPacing bounds the default pacing after attempts that never had a connection.
	unconnectedPacing = time.Second

	// maxUntried is the time for which pauses do not count for a message without an attempt.
	maxUntried = 2 * time.Minute
)

// A History is the attempts of one send so far.
type History struct {
	Attempts, Throttles, Waited, Unconnected int // as in Inputs

	Last  error // of the last attempt
	Maybe bool  // an attempt may have been stored

	throttledSince   time.Time
	unconnectedSince time.Time // start of the first of the last attempts, if they had no connection
	paused           time.Time // a pause before this time does not count as a further throttle
	pausedSince      time.Time // the first pause that it waited for before its first attempt
}

// Record counts an attempt. ctxEnded is true if the caller's ctx has ended; a throttle then does
// not count.
func (h *History) Record(err error, began, ended time.Time, ctxEnded bool) {
	h.Attempts++
	h.Last = err
	h.Maybe = h.Maybe || err == nil || MaybeStored(err) // a success may be lost if the message leaves at the same time
	switch {
	case !Unreached(err):
		h.unconnectedSince = time.Time{}
	case h.unconnectedSince.IsZero():
		h.unconnectedSince = began
		fallthrough
	default:
		h.Unconnected++
	}
	if tidegate.Classify(err) == tidegate.ClassThrottled && !ctxEnded {
		if ended.Before(h.paused) { // this attempt replaces the counted pause
			h.Waited--
			h.Throttles--
			h.paused = time.Time{}
		}
		h.throttle(ended)
	}
}

// throttle counts a throttled attempt, or a pause that the message waited for.
func (h *History) throttle(now time.Time) {
	h.Throttles++
	if h.throttledSince.IsZero() {
		h.throttledSince = now
	}
}

// PauseCounted reports whether a pause that begins now is part of a counted one.
func (h *History) PauseCounted(now time.Time) bool { return now.Before(h.paused) }

// Untried reports whether pauses do not count for the message: it has had no attempt in the first
// two minutes of pauses. Only its deadline can end such a message.
func (h *History) Untried(now time.Time) bool {
	if h.Attempts > 0 {
		return false
	}
	if h.pausedSince.IsZero() {
		h.pausedSince = now
	}
	return now.Sub(h.pausedSince) < maxUntried
}

// CountPause counts a pause that the message waits for as a throttled attempt, at the pace of its
// own backoff.
func (h *History) CountPause(now time.Time, l *Limits) {
	h.Waited++
	h.throttle(now)
	h.paused = now.Add(l.Backoff.Delay(h.Throttles - 1))
}

// Share returns the time limit of an attempt that begins now. The zero deadline means that there is
// none.
func (h *History) Share(l *Limits, now, deadline time.Time) time.Duration {
	made := h.Attempts - h.Unconnected + h.Waited
	if l.MaxThrottles != 0 || l.MaxThrottleTime != 0 { // throttled attempts have limits of their own
		made -= h.Throttles
	}
	return AttemptShare(l.MaxAttempts-made, l.Attempt, l.Floor, deadline.Sub(now), !deadline.IsZero())
}

// Inputs returns the inputs of a decision after an attempt that ended then with err, except for
// those of the producer. The zero deadline means that there is none.
func (h *History) Inputs(l *Limits, err error, ended, deadline time.Time) Inputs {
	in := Inputs{
		Attempts: h.Attempts, Throttles: h.Throttles, Waited: h.Waited, Unconnected: h.Unconnected,
		MaxAttempts: l.MaxAttempts, MaxThrottles: l.MaxThrottles, MaxThrottleTime: l.MaxThrottleTime,
		AtOnce: retriesAtOnce, Floor: l.Floor,
		Class: tidegate.Classify(err), TransportClosed: errors.Is(err, tidegate.ErrClosed),
	}
	if l.Pacing != nil {
		in.AtOnce = 1
	}
	if !h.throttledSince.IsZero() {
		in.ThrottledFor = ended.Sub(h.throttledSince)
	}
	if !h.unconnectedSince.IsZero() {
		in.UnconnectedFor = ended.Sub(h.unconnectedSince)
	}
	if !deadline.IsZero() {
		in.Remaining, in.HasDeadline = deadline.Sub(ended), true
	}
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		in.RetryAfter, in.NotConnected = e.RetryAfter, Unreached(e)
		in.ProxyAlone = e.NotConnected && e.Code != 0
		in.Lapsed = e.Lapsed
		in.Forbidden = e.Is(tidegate.ErrForbidden)
		// A cluster returns these errors for the topics of a broker that has just stopped. Without
		// an endpoint, the transport rejected the message before sending it, and will reject it
		// again.
		in.RouteLost = e.Endpoint != "" && (e.Code == tidegate.CodeTopicNotFound || e.Code == protocol.CodeMessagePropertyConflict)
	}
	return in
}

// Draws are the delays drawn from the backoff for one request, by the number of throttles: messages
// that were throttled together are retried together.
type Draws struct {
	n    int
	last time.Duration
}

// Draw sets the delay of the policy. Messages with the same number of throttles have the same
// delay.
func (in *Inputs) Draw(l *Limits, drawn *Draws) {
	switch in.class() {
	case tidegate.ClassThrottled:
		if n := in.Throttles; n != drawn.n {
			*drawn = Draws{n, l.Backoff.Delay(in.Throttles - 1)}
		}
		in.PolicyDelay = drawn.last
	case tidegate.ClassTransient:
		n := in.paced() - 1 - in.AtOnce
		switch {
		case n < 0:
		case l.Pacing != nil:
			in.PolicyDelay = l.Pacing.Delay(n)
		default:
			in.PolicyDelay = DefaultPacing.Delay(n)
			if in.NotConnected { // an attempt that waits for a connection is no load
				in.PolicyDelay = min(in.PolicyDelay, unconnectedPacing)
			}
		}
	}
}
