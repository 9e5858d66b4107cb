package retry

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
