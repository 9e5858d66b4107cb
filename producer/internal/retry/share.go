package retry

import (
	"math"
	"time"
)

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
