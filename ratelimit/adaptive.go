package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"golang.org/x/time/rate"
)

// AdaptiveOptions are the settings of an [Adaptive]. The zero value is valid.
type AdaptiveOptions struct {
	// Floor is the lowest rate, in events a second. Above 0. Zero means 1.
	Floor rate.Limit

	// Ceiling is the highest rate and the first one. Not below Floor. Zero means rate.Inf: the
	// limiter does not delay events before the first throttle.
	Ceiling rate.Limit

	// Decrease is the factor applied to the rate after a throttle, or to the lower rate at which
	// the server accepted events. Above 0 and below 1. Zero means 0.9.
	Decrease float64

	// Increase sets the growth in each second without a throttle, as a share of the rate after the
	// last decrease and the doublings after it. Above 0. Zero means 0.05.
	Increase float64
}

// The defaults of AdaptiveOptions.
const (
	defaultFloor    rate.Limit = 1
	defaultDecrease float64    = 0.9
	defaultIncrease float64    = 0.05
)

// An Adaptive is a [Limiter] that finds the rate that a server accepts. A throttle lowers the rate
// to Decrease times the current rate, or less if the server accepted events at a lower rate lately.
// One throttle does not lower the rate below half of Decrease times a finite rate. Each second
// without a throttle adds a fixed amount (additive increase, multiplicative decrease, as in TCP).
// Below the rate at which the server last accepted events, times Decrease, the rate doubles in each
// second instead. If the server throttles before it has accepted an event, the rate is unknown: it
// begins at Floor and doubles until the next throttle.
//
// An Adaptive permits bursts of the events of a tenth of a second, at least one.
//
// The caller reports the result of each event with [Adaptive.Observe]. A producer takes tokens for
// first attempts only, because a retry has its own backoff.
//
// Several goroutines may share it; use one for all producers of a process that send to the same
// server. Create one with [NewAdaptive].
type Adaptive struct {
	limiter *rate.Limiter

	mu    sync.Mutex // guards pace; only the lock of limiter is taken under it
	pace  pace
	rules AdaptiveOptions
}

// NewAdaptive returns an Adaptive. The error matches tidegate.ErrInvalid and lists every invalid
// field of o with the valid values.
func NewAdaptive(o AdaptiveOptions) (*Adaptive, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Adaptive{
		limiter: rate.NewLimiter(o.Ceiling, burstOf(o.Ceiling)),
		pace:    pace{limit: o.Ceiling},
		rules:   o,
	}, nil
}

func (o AdaptiveOptions) withDefaults() AdaptiveOptions {
	if o.Floor == 0 {
		o.Floor = defaultFloor
	}
	if o.Ceiling == 0 {
		o.Ceiling = rate.Inf
	}
	if o.Decrease == 0 {
		o.Decrease = defaultDecrease
	}
	if o.Increase == 0 {
		o.Increase = defaultIncrease
	}
	return o
}

func (o AdaptiveOptions) validate() error {
	const op = "ratelimit.NewAdaptive"
	var errs []error
	if !(o.Floor > 0) || o.Floor == rate.Inf {
		errs = append(errs, invalid(op, "Floor", "is %v/s; it must be a finite number above 0", float64(o.Floor)))
	}
	if !(o.Ceiling >= o.Floor) {
		errs = append(errs, invalid(op, "Ceiling", "is %v/s; it must be Floor (%v/s) or more", float64(o.Ceiling), float64(o.Floor)))
	}
	if !(o.Decrease > 0 && o.Decrease < 1) {
		errs = append(errs, invalid(op, "Decrease", "is %v; it must be a number above 0 and below 1", o.Decrease))
	}
	if !(o.Increase > 0) || math.IsInf(o.Increase, 0) {
		errs = append(errs, invalid(op, "Increase", "is %v; it must be a finite number above 0", o.Increase))
	}
	return errors.Join(errs...)
}

// WaitN blocks until n events are permitted or ctx ends. An n above the burst waits for the time
// that n events take at the current rate. The errors are those of [Wait].
func (a *Adaptive) WaitN(ctx context.Context, n int) error {
	for n > 0 {
		a.grow(time.Now())
		part := min(n, a.limiter.Burst())
		err := a.limiter.WaitN(ctx, part)
		if err != nil && part > a.limiter.Burst() && ctx.Err() == nil {
			continue // the burst has decreased since it was read
		}
		if err != nil {
			return a.explain(ctx, n, err)
		}
		n -= part
	}
	if n < 0 {
		return named(negative(n), "ratelimit.WaitN", "")
	}
	return nil
}

func (a *Adaptive) explain(ctx context.Context, n int, err error) error {
	const op = "ratelimit.WaitN"
	if ctx.Err() != nil {
		return named(ended(ctx, n, err), op, "")
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return &tidegate.Error{Op: op, Message: fmt.Sprintf("the limiter does not permit n=%d", n), Err: err}
	}
	now, limit := time.Now(), a.limiter.Limit()
	wait := timeFor(float64(n)-a.limiter.TokensAt(now), limit)
	return named(tooLate(n, wait, deadline.Sub(now), limit, a.limiter.Burst()), op, "")
}

// Observe reports the result of an event: nil, or its error. An error that matches
// tidegate.ErrThrottled lowers the rate, at most once in 100 ms because throttles come in groups. A
// nil error counts as an accepted event. Other errors change nothing.
func (a *Adaptive) Observe(err error) {
	throttled := errors.Is(err, tidegate.ErrThrottled)
	if err != nil && !throttled {
		return
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.pace.accepted(now)
	if throttled {
		next = a.pace.throttled(now, a.rules)
	}
	a.set(now, next)
}

// Limit returns the current rate in events a second.
func (a *Adaptive) Limit() rate.Limit {
	a.grow(time.Now())
	return a.limiter.Limit()
}

func (a *Adaptive) grow(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set(now, a.pace.grown(now, a.rules))
}

// set replaces the pace. The caller holds a.mu.
func (a *Adaptive) set(now time.Time, next pace) {
	if next.limit != a.pace.limit {
		a.limiter.SetLimitAt(now, next.limit)
		a.limiter.SetBurstAt(now, burstOf(next.limit))
	}
	a.pace = next
}

// burstOf returns the number of events in a tenth of a second, at least one.
func burstOf(l rate.Limit) int {
	return int(max(1, min(math.Ceil(float64(l)/10), math.MaxInt32)))
}
