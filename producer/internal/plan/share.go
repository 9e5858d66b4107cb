package plan

import "time"

// lastMargin is the most that the last attempt leaves of the time.
const lastMargin = 50 * time.Millisecond

// AttemptShare is the time that the next attempt gets: the time left until the
// deadline divided by the attempts left, so that a server that never responds
// leaves time for the attempts after it. The last one leaves a twentieth: its own
// result tells whether a server had the message, the end of ctx does not. It is
// at least floor and at most limit.
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
