// Package ratelimit limits the rate of events: [Wait] uses one limiter, and [Keyed] has a limiter
// for each topic, client or group. [Adaptive] follows the rate that a server accepts, and [Budget]
// bounds retries.
//
// Limiters are token buckets like [rate.Limiter]: a bucket holds at most burst tokens and regains
// limit tokens a second, and n events take n tokens. Errors about the request, the deadline and the
// context are [*tidegate.Error] values. An error about the deadline contains the necessary wait if
// the limiter reports its rate.
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

// A Limiter blocks until n events are permitted. It returns an error if they are not permitted or
// ctx ends first. Several goroutines may share it. [*rate.Limiter] is a Limiter; call it with
// [Wait], which returns better errors.
type Limiter interface {
	WaitN(ctx context.Context, n int) error
}

var _ Limiter = (*rate.Limiter)(nil)

// Wait blocks until l permits n events or ctx ends. It returns nil if the events are permitted, and
// otherwise an error that matches
//
//   - tidegate.ErrInvalid, if n is negative, or above the burst of a limiter that reports its
//     burst;
//   - context.DeadlineExceeded, at once, if l could not permit the events before ctx's deadline.
//     The text has the time left. If l is a *rate.Limiter, it also has an estimate of the necessary
//     wait;
//   - context.Cause(ctx), if ctx has ended.
//
// Wait returns any other error of l unchanged or wrapped. It never blocks if n is 0.
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
	return &tidegate.Error{Code: tidegate.CodeBadRequest, Message: fmt.Sprintf("n is %d; it must be 0 or more", n)}
}

func aboveBurst(n int, limit rate.Limit, burst int) *tidegate.Error {
	return &tidegate.Error{Code: tidegate.CodeBadRequest,
		Message: fmt.Sprintf("n is %d, which exceeds the burst of %d (limit %v/s); "+
			"give less, or raise the burst", n, burst, float64(limit))}
}

func tooLate(n int, wait, left time.Duration, limit rate.Limit, burst int) *tidegate.Error {
	long := "longer"
	switch {
	case wait == math.MaxInt64:
		long = "without end"
	case wait >= left: // otherwise other reservations were cancelled meanwhile
		long = wait.String()
	}
	return &tidegate.Error{Err: context.DeadlineExceeded,
		Message: fmt.Sprintf("n=%d must wait %s, but the deadline is in %v (limit %v/s, burst %d); "+
			"set a later deadline, or give less", n, long, left, float64(limit), burst)}
}

// ended returns the error of an ended ctx. It wraps the cause and the limiter's error, which is
// usually ctx.Err().
func ended(ctx context.Context, n int, limiter error) *tidegate.Error {
	err := context.Cause(ctx)
	if limiter != nil && !errors.Is(err, limiter) {
		err = fmt.Errorf("%w; limiter: %w", err, limiter)
	}
	return &tidegate.Error{Err: err, Message: fmt.Sprintf("the context ended before n=%d was permitted", n)}
}
