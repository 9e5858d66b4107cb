package retry

// A Stop is the reason why a decision ends a send.
type Stop uint8

// The reasons.
const (
	Continue    Stop = iota // the send succeeded, or another attempt follows
	Permanent               // the same request would fail again
	Exhausted               // MaxAttempts were made, or there was no connection for two minutes
	Throttled               // MaxThrottles or MaxThrottleTime is reached
	PushedBack              // the server requested no further attempt
	Deadline                // the next attempt could not end before the deadline
	Context                 // the caller's ctx ended
	Closed                  // the producer or its transport was closed
	Budget                  // the budget has no retry left; only the producer stops for it
	HalfMessage             // a half message failed that may have reached a server
	Revoked                 // the topic's permission is gone; the message moves to Options.Spool

	Stops // the number of reasons
)

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
