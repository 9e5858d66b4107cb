// Package backoff tells how long to wait before a retry. Its policies are pure
// functions of the retry's number: they keep no state, so one value serves all
// goroutines, can be asked twice, shown ([Preview]) and tested by its bounds
// (Range) without a seed.
//
// [Exponential] is the connection backoff of gRPC, which RocketMQ prescribes for throttled sends
// (RocketMQ: sending retry and throttling). [Steps] is a ladder of fixed delays, which RocketMQ
// uses for consumption retry (RocketMQ: consumption retry).
package backoff

import (
	"context"
	"time"
)

// A Policy tells how long to wait before retry n, n being 0 for the first
// retry. A negative n is treated as 0. The delay is never negative. Asking
// changes nothing, and goroutines may share a Policy.
type Policy interface {
	Delay(n int) time.Duration
}

// A Ranger knows the bounds of its delays: lo <= Delay(n) <= hi, both
// included. [Exponential] and [Steps] are Rangers.
type Ranger interface {
	Range(n int) (lo, hi time.Duration)
}

// Sleep waits for d, or until ctx ends. It returns nil if ctx is alive when
// the wait is over, which for a d of 0 or less is at once, and
// context.Cause(ctx) if ctx ended before or meanwhile.
func Sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	// Asked after the timer too: where both are ready, select picks any.
	return context.Cause(ctx)
}
