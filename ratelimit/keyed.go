package ratelimit

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
)

// maxKeys is the largest number of keys in a [Keyed].
const maxKeys = 1 << 16

// A Keyed has a token bucket for each key, all with the same limit and burst. In any interval it
// permits a key at most
//
//	burst + limit * interval
//
// events. Cancelled waits and removed keys do not change that: a key is removed only when its
// bucket is full, which is also the state of a new bucket. Calls for any key remove keys that were
// not used for the idle time; there is no goroutine.
//
// A Keyed has at most 65 536 keys. At this number a new key replaces the least recently used key.
// The new key is rejected until the bucket of that old key is full. Otherwise the old key could use
// its burst a second time after its removal.
//
// The waiting callers of a key are served in the order of their calls. A caller that gives up takes
// no tokens. Keyed does not use the reservations of [rate.Limiter], because cancelling one can
// return tokens that were never free.
//
// Several goroutines may share a Keyed. Create one with [NewKeyed]; the zero value must not be
// used.
//
// Liveness: the first waiting caller of a key has a timer at the time at which its tokens are
// available, and SetLimit wakes it. When it leaves, the next one becomes the first. A wake-up of
// the first caller ends its wait, follows a SetLimit, or follows a wait that was rounded down by
// less than a nanosecond.
type Keyed[K comparable] struct {
	idle    time.Duration
	maxKeys int // the constant, except in tests

	mu      sync.Mutex // guards the following fields; not held while waiting
	limit   rate.Limit
	burst   int
	changed chan struct{} // closed and replaced by SetLimit
	keys    map[K]*bucket[K]
	unused  list.List // the buckets without waiting callers, the most recently used first
}

// NewKeyed returns a Keyed that permits each key limit events a second, and burst events at once. A
// limit of [rate.Inf] permits everything. A key that was not used for idle can be removed; with an
// idle of 0, as soon as its bucket is full.
//
// The error matches tidegate.ErrInvalid and lists every invalid argument: limit must be above 0,
// burst at least 1, idle at least 0.
func NewKeyed[K comparable](limit rate.Limit, burst int, idle time.Duration) (*Keyed[K], error) {
	const op = "ratelimit.NewKeyed"
	err := validate(op, limit, burst)
	if idle < 0 {
		err = errors.Join(err, invalid(op, "idle", "is %v; it must be 0s or more", idle))
	}
	if err != nil {
		return nil, err
	}
	return &Keyed[K]{
		idle:    idle,
		maxKeys: maxKeys,
		limit:   limit,
		burst:   burst,
		changed: make(chan struct{}),
		keys:    map[K]*bucket[K]{},
	}, nil
}

func validate(op string, limit rate.Limit, burst int) error {
	var errs []error
	if !(limit > 0) || math.IsInf(float64(limit), 0) { // NaN is not above 0
		errs = append(errs, invalid(op, "limit", "is %v/s; it must be a number above 0, or rate.Inf", float64(limit)))
	}
	if burst < 1 && limit != rate.Inf {
		errs = append(errs, invalid(op, "burst", "is %d; it must be 1 or more", burst))
	}
	return errors.Join(errs...)
}

func invalid(op, field, format string, args ...any) error {
	return &tidegate.Error{Op: op, Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// SetLimit changes limit and burst for every key and for callers that are waiting. A key keeps its
// tokens, up to the new burst. The time that SetLimit takes is proportional to the number of keys.
// After an error, which is that of NewKeyed, nothing has changed.
func (k *Keyed[K]) SetLimit(limit rate.Limit, burst int) error {
	if err := validate("ratelimit.SetLimit", limit, burst); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for _, b := range k.keys {
		b.tokens.SetLimitAt(now, limit)
		b.tokens.SetBurstAt(now, burst)
	}
	k.limit, k.burst = limit, burst
	close(k.changed)
	k.changed = make(chan struct{})
	return nil
}

// Len removes the keys that can be removed, and returns the number of the others.
func (k *Keyed[K]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget(time.Now(), k.maxKeys)
	return len(k.keys)
}

// AllowN reports whether n events are permitted for key now, and takes their tokens if so. It never
// blocks, and it never overtakes waiting callers. It returns false if n is negative or above the
// burst, and for a new key without room (see [Keyed]).
func (k *Keyed[K]) AllowN(key K, n int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n <= 0 || k.limit == rate.Inf {
		return n >= 0
	}
	if n > k.burst {
		return false
	}
	now := time.Now()
	b := k.use(key, now)
	if b == nil || k.wait(b, n, now) > 0 {
		return false
	}
	k.take(b, n, now)
	return true
}

// DelayN returns the time until n events for key would be permitted without further callers; 0
// means now. It takes no tokens and never blocks. A server can return the time to a throttled
// client.
//
// The bool is false if n is negative or above the burst. For a new key without room (see [Keyed])
// the time is that until there can be room.
func (k *Keyed[K]) DelayN(key K, n int) (time.Duration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n <= 0 || k.limit == rate.Inf {
		return 0, n >= 0
	}
	if n > k.burst {
		return 0, false
	}
	now := time.Now()
	if b, ok := k.keys[key]; ok {
		return k.wait(b, n, now), true
	}
	if len(k.keys) < k.maxKeys {
		return 0, true
	}
	return k.untilRoom(now), true
}

// WaitN blocks until n events for key are permitted or ctx ends. It returns nil if they are
// permitted. The errors are those of [Wait], with exact times. If there is no room for a new key
// (see [Keyed]), the error matches tidegate.ErrThrottled and has RetryAfter.
func (k *Keyed[K]) WaitN(ctx context.Context, key K, n int) error {
	// The key is formatted before k.mu is taken, because its String method may call k.
	if err := k.waitN(ctx, key, n); err != nil {
		return named(err, "ratelimit.WaitN", fmt.Sprint(key))
	}
	return nil
}

func (k *Keyed[K]) waitN(ctx context.Context, key K, n int) *tidegate.Error {
	if n < 0 {
		return negative(n)
	}
	if ctx.Err() != nil {
		return ended(ctx, n, nil)
	}
	deadline, _ := ctx.Deadline() // zero for none
	b, err := k.enter(key, n, deadline)
	if b == nil {
		return err
	}

	// The first waiting caller of a key has the slot, and only that caller takes tokens. The others
	// wait to send on the channel, which serves them in order.
	select {
	case b.slot <- struct{}{}:
		defer func() { <-b.slot }()
	case <-ctx.Done():
		k.leave(b, n)
		return ended(ctx, n, nil)
	}
	for {
		// Checked again, because select may choose another ready case.
		if ctx.Err() != nil {
			k.leave(b, n)
			return ended(ctx, n, nil)
		}
		wait, changed, err := k.proceed(b, n, deadline)
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

// enter takes n tokens if no wait is necessary. It then returns no bucket, and neither does it with
// an error. Otherwise it adds the caller to the waiting callers of a bucket and returns that
// bucket.
func (k *Keyed[K]) enter(key K, n int, deadline time.Time) (*bucket[K], *tidegate.Error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n == 0 || k.limit == rate.Inf {
		return nil, nil
	}
	if n > k.burst {
		return nil, aboveBurst(n, k.limit, k.burst)
	}
	now := time.Now()
	b := k.use(key, now)
	if b == nil {
		return nil, k.noRoom(now)
	}
	wait := k.wait(b, n, now)
	if wait == 0 {
		k.take(b, n, now)
		return nil, nil
	}
	if misses(deadline, wait, now) {
		return nil, tooLate(n, wait, deadline.Sub(now), k.limit, k.burst)
	}
	if b.slot == nil {
		b.slot = make(chan struct{}, 1)
	}
	if b.elem != nil {
		k.unused.Remove(b.elem)
		b.elem = nil
	}
	b.callers++
	b.waiting += float64(n)
	return b, nil
}

// proceed takes n tokens for the caller with the slot of b. If they are not available, it returns
// the time to wait before the next try, and a channel that ends the wait early. Otherwise it
// removes the caller from the waiting ones.
func (k *Keyed[K]) proceed(b *bucket[K], n int, deadline time.Time) (time.Duration, <-chan struct{}, *tidegate.Error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	var err *tidegate.Error
	if k.limit != rate.Inf {
		wait := timeFor(float64(n)-k.level(b, now), k.limit)
		switch {
		case n > k.burst: // after a SetLimit
			err = aboveBurst(n, k.limit, k.burst)
		case wait == 0:
			k.take(b, n, now)
		case misses(deadline, wait, now): // after a SetLimit
			err = tooLate(n, wait, deadline.Sub(now), k.limit, k.burst)
		default:
			return wait, k.changed, nil
		}
	}
	k.leaveLocked(b, n, now)
	return 0, nil, err
}

// misses reports whether a wait would miss the deadline. A wait until the deadline itself is too
// long, because ctx ends then.
func misses(deadline time.Time, wait time.Duration, now time.Time) bool {
	return !deadline.IsZero() && wait >= deadline.Sub(now)
}

func (k *Keyed[K]) leave(b *bucket[K], n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaveLocked(b, n, time.Now())
}
