// Package backoff computes the wait before a retry. Its policies are functions of the retry's
// number alone. They have no state, so several goroutines can share one, [Preview] can print it,
// and tests can compare a delay with its bounds (Range).
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
//
// A policy with random delays should also have the method Range(n int) (lo, hi time.Duration),
// which returns their bounds, as [Exponential] does. [Preview] uses it.
type Policy interface {
	Delay(n int) time.Duration
}

// ranged is a policy that reports the bounds of its delays: lo <= Delay(n) <= hi.
type ranged interface {
	Range(n int) (lo, hi time.Duration)
}

// rangeOf returns the bounds of p.Delay(n). Without a method Range they are one delay.
func rangeOf(p Policy, n int) (lo, hi time.Duration) {
	if r, ok := p.(ranged); ok {
		return r.Range(n)
	}
	d := p.Delay(n)
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
