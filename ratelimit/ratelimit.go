// Package ratelimit holds callers back to a rate: [Wait] for one limiter,
// [Keyed] for a limiter each to many topics, clients or groups.
//
// Both are token buckets in the sense of [rate.Limiter]: a bucket holds at
// most burst tokens, regains limit tokens a second, and n events take n.
// Errors about the request, the deadline and the context are
// [*tidegate.Error] values that say how long the wait would have been.
package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tidegate/tidegate"
	"golang.org/x/time/rate"
)

// A Limiter holds the caller back until n events may happen, and returns an
// error if they may not or ctx ends first. Goroutines may share it.
// [*rate.Limiter] is one; call it by [Wait], which gives better errors.
type Limiter interface {
	WaitN(ctx context.Context, n int) error
}

var _ Limiter = (*rate.Limiter)(nil)

// Wait blocks until l permits n events, or ctx ends. It returns nil if they
// may happen, otherwise an error that matches
//
//   - tidegate.ErrInvalid, if n is negative, or more than the burst of a
//     limiter that tells its burst, so that no wait would help;
//   - context.DeadlineExceeded, at once and before the deadline has passed, if
//     the limiter could not permit them before ctx's deadline. The text says
//     how long that would take, as far as l tells (a *rate.Limiter does; it is
//     a guess, as others may take what this caller left), and what time is left;
//   - context.Cause(ctx), if ctx ended before or meanwhile.
//
// Any other error of l is returned as it is, or wrapped. An n of 0 never waits.
func Wait(ctx context.Context, l Limiter, n int) error {
	const op = "ratelimit.Wait"
	switch {
	case n < 0:
		return named(negative(n), op, "")
	case ctx.Err() != nil:
		return named(ended(ctx, n, nil), op, "")
	case n == 0:
		return nil
	}
	err := l.WaitN(ctx, n)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return named(ended(ctx, n, err), op, "")
	}
	if _, ok := errors.AsType[*tidegate.Error](err); ok {
		return err // has a code and a text already
	}
	b, ok := l.(interface {
		Burst() int
		Limit() rate.Limit
		TokensAt(time.Time) float64
	})
	if ok && b.Limit() != rate.Inf && n > b.Burst() {
		return named(aboveBurst(n, b.Limit(), b.Burst()), op, "")
	}
	if deadline, has := ctx.Deadline(); ok && has {
		now := time.Now()
		wait := timeFor(float64(n)-b.TokensAt(now), b.Limit())
		return named(tooLate(n, wait, deadline.Sub(now), b.Limit(), b.Burst()), op, "")
	}
	return &tidegate.Error{Op: op, Message: fmt.Sprintf("the limiter does not permit n=%d", n), Err: err}
}

// named completes one of the errors below.
func named(e *tidegate.Error, op, subject string) error {
	e.Op, e.Subject = op, subject
	return e
}

func negative(n int) *tidegate.Error {
	return &tidegate.Error{Code: tidegate.CodeBadRequest, Message: fmt.Sprintf("n is %d; legal is 0 or more", n)}
}

func aboveBurst(n int, limit rate.Limit, burst int) *tidegate.Error {
	return &tidegate.Error{Code: tidegate.CodeBadRequest,
		Message: fmt.Sprintf("n is %d, but no more than the burst of %d is ever permitted at once (limit %v/s); "+
			"ask for less or raise the burst", n, burst, float64(limit))}
}

func tooLate(n int, wait, left time.Duration, limit rate.Limit, burst int) *tidegate.Error {
	long := "longer"
	switch {
	case wait == math.MaxInt64:
		long = "for ever"
	case wait >= left: // else others gave way since the limiter refused
		long = wait.String()
	}
	return &tidegate.Error{Err: context.DeadlineExceeded,
		Message: fmt.Sprintf("n=%d would have to wait %s, but the deadline is in %v (limit %v/s, burst %d); "+
			"give the call more time or ask for less", n, long, left, float64(limit), burst)}
}

// ended says that ctx ended. It wraps the cause, and also what the limiter
// says, which is usually ctx.Err().
func ended(ctx context.Context, n int, limiter error) *tidegate.Error {
	err := context.Cause(ctx)
	if limiter != nil && !errors.Is(err, limiter) {
		err = fmt.Errorf("%w; the limiter says: %w", err, limiter)
	}
	return &tidegate.Error{Err: err, Message: fmt.Sprintf("the context ended before n=%d was permitted", n)}
}
