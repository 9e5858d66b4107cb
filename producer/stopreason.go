package producer

// A StopReason is the reason why a send ended without success.
type StopReason int

// The reasons to stop.
const (
	NotStopped      StopReason = iota // the send succeeded, or another attempt follows
	StopInvalid                       // the message can never be sent; no attempt was made
	StopPermanent                     // the same request would fail again
	StopExhausted                     // MaxAttempts were made, or there was no connection for two minutes
	StopThrottled                     // the server throttled for longer than MaxThrottles or MaxThrottleTime allows
	StopPushedBack                    // the server requested no further attempt
	StopDeadline                      // the next attempt could not end before the deadline of ctx
	StopLimiter                       // Options.Limiter returned an error
	StopContext                       // ctx ended
	StopClosed                        // the producer or its transport was closed
	StopFull                          // MaxPending or MaxPendingBytes would be exceeded; no attempt was made
	StopBudget                        // Options.Budget has no retry left
	StopHalfMessage                   // a half message failed that may have reached a server; it is not sent again
	StopSpool                         // Options.Spool rejected the message
)

// String returns the reason in words.
func (r StopReason) String() string {
	switch r {
	case NotStopped:
		return "not stopped"
	case StopInvalid:
		return "invalid message"
	case StopPermanent:
		return "permanent failure"
	case StopExhausted:
		return "attempts exhausted"
	case StopThrottled:
		return "throttled too often"
	case StopPushedBack:
		return "server asked not to retry"
	case StopDeadline:
		return "deadline too close"
	case StopLimiter:
		return "rejected by the limiter"
	case StopContext:
		return "context ended"
	case StopClosed:
		return "closed"
	case StopFull:
		return "producer full"
	case StopBudget:
		return "retry budget spent"
	case StopHalfMessage:
		return "half messages are not retried"
	case StopSpool:
		return "rejected by the spool"
	}
	return "unknown"
}

// A DelaySource is the origin of the wait before the next attempt.
type DelaySource int

// The sources of a delay.
const (
	NoDelay       DelaySource = iota // there is no wait, or no next attempt
	BackoffDelay                     // Options.Backoff, after a throttled attempt
	PushBackDelay                    // the server requested a longer wait than Options.Backoff or Pacing
	PacingDelay                      // Options.Pacing, after repeated transient failures
)

// String returns the lower-case name.
func (s DelaySource) String() string {
	switch s {
	case NoDelay:
		return "none"
	case BackoffDelay:
		return "backoff"
	case PushBackDelay:
		return "push-back"
	case PacingDelay:
		return "pacing"
	}
	return "unknown"
}
