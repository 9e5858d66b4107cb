// Package backoff computes the wait before a retry. Its policies are pure functions of the retry's
// number. They have no state, so several goroutines can share one, [Preview] can print it, and
// tests can compare a delay with its bounds (Range).
//
// [Exponential] is gRPC's connection backoff, which RocketMQ uses for throttled sends (RocketMQ:
// sending retry and throttling). [Steps] is a list of fixed delays, which RocketMQ uses for
// consumption retry (RocketMQ: consumption retry).
package backoff

import (
	"context"
	"time"
)

// A Policy returns the wait before retry n; 0 is the first retry. A negative n means 0. The delay
// is never negative. Delay changes nothing, so several goroutines may share a Policy.
type Policy interface {
	Delay(n int) time.Duration
}

// A Ranger returns the bounds of its delays: lo <= Delay(n) <= hi. [Exponential] and [Steps] are
// Rangers.
type Ranger interface {
	Range(n int) (lo, hi time.Duration)
}

// RangerOf returns p if it is a [Ranger], and otherwise a Ranger whose bounds are both p.Delay(n).
func RangerOf(p Policy) Ranger {
	if r, ok := p.(Ranger); ok {
		return r
	}
	return exact{p}
}

// exact is a policy that does not know the bounds of its delays.
type exact struct{ Policy }

// Range implements [Ranger].
func (e exact) Range(n int) (lo, hi time.Duration) {
	d := e.Delay(n)
	return d, d
}

// Sleep waits until d is over or ctx ends. It returns nil if d is over and ctx has not ended, and
// context.Cause(ctx) otherwise. A d of 0 or less is over at once.
func Sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	// Checked after the timer too, because select chooses at random if both are ready.
	return context.Cause(ctx)
}
