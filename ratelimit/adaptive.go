package ratelimit

import (
	"context"
	"errors"
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
// An Adaptive permits bursts of the events of a tenth of a second, at least one. Waiting callers
// are served in the order of their calls. Their waits follow the rate as it changes. A caller that
// gives up takes no tokens.
//
// The caller reports the result of each event with [Adaptive.Observe]. A producer takes tokens for
// first attempts only, because a retry has its own backoff.
//
// Several goroutines may share it; use one for all producers of a process that send to the same
// server. Create one with [NewAdaptive].
//
// Liveness: the first waiting caller has a timer at the time at which its tokens are available if
// no throttle comes. When it leaves, the next one becomes the first. A wake-up of the first caller
// either ends its wait or follows a throttle that changed the rate, of which there are at most ten
// in a second.
type Adaptive struct {
	rules AdaptiveOptions
	slot  chan struct{} // of capacity 1: the caller whose value is in it is the first one

	mu      sync.Mutex // guards the following fields; not held while waiting
	pace    pace
	tokens  float64       // at pace.grew
	callers int           // number of waiting callers
	waiting float64       // tokens that they wait for
	first   float64       // of them, those of the first caller
	changed chan struct{} // closed and replaced by a throttle that changed the pace
}

// NewAdaptive returns an Adaptive. The error matches tidegate.ErrInvalid and lists every invalid
// field of o with the valid values.
func NewAdaptive(o AdaptiveOptions) (*Adaptive, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Adaptive{
		rules:   o,
		slot:    make(chan struct{}, 1),
		pace:    pace{limit: o.Ceiling, grew: time.Now()},
		tokens:  float64(burstOf(o.Ceiling)),
		changed: make(chan struct{}),
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
// that n events take. The errors are those of [Wait]. An error about the deadline considers the
// growth of the rate without further throttles.
func (a *Adaptive) WaitN(ctx context.Context, n int) error {
	if err := a.waitN(ctx, n); err != nil {
		return named(err, "ratelimit.WaitN", "")
	}
	return nil
}

func (a *Adaptive) waitN(ctx context.Context, n int) *tidegate.Error {
	switch {
	case n < 0:
		return negative(n)
	case ctx.Err() != nil:
		return ended(ctx, n, nil)
	}
	deadline, _ := ctx.Deadline() // zero for none
	if waits, err := a.enter(n, deadline); !waits {
		return err
	}
	select {
	case a.slot <- struct{}{}:
		defer func() { <-a.slot }()
	case <-ctx.Done():
		a.leave(n, false)
		return ended(ctx, n, nil)
	}
	for {
		// Checked again, because select may choose another ready case.
		if ctx.Err() != nil {
			a.leave(n, true)
			return ended(ctx, n, nil)
		}
		wait, changed, err := a.proceed(n, deadline)
		if wait == 0 {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// enter takes n tokens if no wait is necessary. Otherwise it adds the caller to the waiting ones
// and returns true. It returns an error if the wait would miss the deadline.
func (a *Adaptive) enter(n int, deadline time.Time) (waits bool, err *tidegate.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.advance(now)
	wait := a.pace.until(a.waiting+float64(n)-a.tokens, a.rules)
	switch {
	case n == 0:
	case wait == 0 && a.callers == 0:
		a.take(n)
	case misses(deadline, wait, now):
		return false, a.tooLate(n, wait, deadline.Sub(now))
	default:
		a.callers++
		a.waiting += float64(n)
		return true, nil
	}
	return false, nil
}

// proceed takes n tokens for the first waiting caller and removes it from the waiting ones. If the
// tokens are not available, it returns the time to wait before the next try, and a channel that
// ends the wait early.
func (a *Adaptive) proceed(n int, deadline time.Time) (time.Duration, <-chan struct{}, *tidegate.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.first = float64(n)
	a.advance(now)
	wait := a.pace.until(float64(n)-a.tokens, a.rules)
	var err *tidegate.Error
	switch {
	case wait == 0:
		a.take(n)
	case misses(deadline, wait, now): // after a throttle
		err = a.tooLate(n, wait, deadline.Sub(now))
	default:
		return wait, a.changed, nil
	}
	a.leaveLocked(n, true)
	return 0, nil, err
}

// leave removes a caller that gives up.
func (a *Adaptive) leave(n int, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.advance(time.Now())
	a.leaveLocked(n, first)
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
	a.advance(now)
	if !throttled {
		a.pace = a.pace.accepted(now)
		return
	}
	before := a.pace.decreased
	if a.pace = a.pace.throttled(now, a.rules); a.pace.decreased.Equal(before) {
		return
	}
	a.tokens = min(a.tokens, a.capacity())
	close(a.changed)
	a.changed = make(chan struct{})
}

// Limit returns the current rate in events a second.
func (a *Adaptive) Limit() rate.Limit {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.advance(time.Now())
	return a.pace.limit
}

// The methods below are called with a.mu held.

// advance brings the pace and the tokens up to date.
func (a *Adaptive) advance(now time.Time) {
	var regained float64
	a.pace, regained = a.pace.grown(now, a.rules)
	a.tokens = min(a.tokens+regained, a.capacity())
}

// capacity returns the largest number of tokens: the burst, or those of the first caller if it
// waits for more.
func (a *Adaptive) capacity() float64 { return max(float64(burstOf(a.pace.limit)), a.first) }

func (a *Adaptive) take(n int) {
	if a.pace.limit != rate.Inf {
		a.tokens -= float64(n)
	}
}

// leaveLocked removes a caller that waited for n tokens.
func (a *Adaptive) leaveLocked(n int, first bool) {
	a.waiting -= float64(n)
	if a.callers--; a.callers == 0 {
		a.waiting = 0 // the sum of large floats may not return to exactly 0
	}
	if first {
		a.first = 0
		a.tokens = min(a.tokens, a.capacity())
	}
}

func (a *Adaptive) tooLate(n int, wait, left time.Duration) *tidegate.Error {
	return tooLate(n, wait, left, a.pace.limit, burstOf(a.pace.limit))
}

// burstOf returns the number of events in a tenth of a second, at least one.
func burstOf(l rate.Limit) int {
	return int(max(1, min(math.Ceil(float64(l)/10), math.MaxInt32)))
}
