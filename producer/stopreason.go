package producer

import "github.com/tidegate/tidegate/producer/internal/retry"

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
	StopSpool                         // Options.Spool rejected the message; of an Attempt: it moves to the spool for a lost permission

	reasons // the number of reasons
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

// stopReasons are the reasons of the decisions.
var stopReasons = [retry.Stops]StopReason{
	retry.Continue: NotStopped, retry.Permanent: StopPermanent, retry.Exhausted: StopExhausted,
	retry.Throttled: StopThrottled, retry.PushedBack: StopPushedBack, retry.Deadline: StopDeadline,
	retry.Context: StopContext, retry.Closed: StopClosed, retry.Budget: StopBudget, retry.HalfMessage: StopHalfMessage,
	retry.Revoked: StopSpool,
}
