package ratelimit

import (
	"container/list"
	"fmt"
	"math"
	"time"

	"github.com/tidegate/tidegate"
	"golang.org/x/time/rate"
)

// A bucket is the state of one key; its Keyed's mu guards it. A bucket is in the list of unused
// buckets, or callers wait for it. Buckets in use are therefore never removed.
type bucket[K comparable] struct {
	key     K
	tokens  *rate.Limiter // without reservations: only the caller with the slot takes tokens, and only available ones
	used    time.Time     // last call or wait
	callers int           // number of waiting callers
	waiting float64       // tokens that they wait for
	slot    chan struct{} // of capacity 1: the caller whose value is in it may take tokens; nil until the first wait
	elem    *list.Element // in Keyed.unused; nil if callers > 0
}

// timeFor returns the time to regain the tokens, rounded to the nearest nanosecond; 0 if they are
// available. Up to half a nanosecond's worth can be missing after that time. [rate.Limiter] lends
// it, because it rounds a wait down to whole nanoseconds, and the bucket repays it, so the errors
// do not add up.
func timeFor(tokens float64, limit rate.Limit) time.Duration {
	switch {
	case tokens <= 0 || limit == rate.Inf:
		return 0
	case limit <= 0:
		return math.MaxInt64
	}
	return duration(tokens / float64(limit))
}

// duration returns the seconds rounded to the nearest nanosecond, and at most the longest duration.
func duration(seconds float64) time.Duration {
	ns := math.Round(seconds * float64(time.Second))
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

// The methods of Keyed below are called with k.mu held.

// level returns the tokens of b at now.
func (k *Keyed[K]) level(b *bucket[K], now time.Time) float64 {
	if k.limit == rate.Inf {
		return math.Inf(1)
	}
	return b.tokens.TokensAt(now)
}

// take removes n available tokens from b.
func (*Keyed[K]) take(b *bucket[K], n int, now time.Time) { b.tokens.AllowN(now, n) }

// wait returns the time that a new caller would wait for n tokens of b behind the waiting callers.
func (k *Keyed[K]) wait(b *bucket[K], n int, now time.Time) time.Duration {
	return timeFor(b.waiting+float64(n)-k.level(b, now), k.limit)
}

// use returns the bucket of key, creates it if necessary, and marks it as used. It returns nil if
// there is no room for a new bucket.
func (k *Keyed[K]) use(key K, now time.Time) *bucket[K] {
	// forget runs before the lookup, so that it cannot remove the returned bucket. It may remove
	// more buckets than this call adds, so that removable buckets do not accumulate, but only a
	// few, so that no call takes long.
	k.forget(now, 3)
	if b, ok := k.keys[key]; ok {
		b.used = now
		if b.elem != nil {
			k.unused.MoveToFront(b.elem)
		}
		return b
	}
	if len(k.keys) >= k.maxKeys && !k.makeRoom(now) {
		return nil
	}
	b := &bucket[K]{key: key, tokens: rate.NewLimiter(k.limit, k.burst), used: now}
	b.elem = k.unused.PushFront(b)
	k.keys[key] = b
	return b
}

// leaveLocked removes a caller that waited for n tokens of b.
func (k *Keyed[K]) leaveLocked(b *bucket[K], n int, now time.Time) {
	b.waiting -= float64(n)
	b.callers--
	if b.callers == 0 {
		b.waiting = 0 // the sum of large floats may not return to exactly 0
		b.used = now
		b.elem = k.unused.PushFront(b)
	}
}

// forget removes up to most buckets that were not used for the idle time, the least recently used
// first. It removes only full buckets: a new bucket has as many tokens. A bucket that is not full
// keeps the more recently used ones in the list, for at most burst/limit.
func (k *Keyed[K]) forget(now time.Time, most int) {
	for range most {
		b := k.oldest()
		if b == nil || now.Sub(b.used) < k.idle || !k.full(b, now) {
			return
		}
		k.drop(b)
	}
}

// makeRoom removes the least recently used bucket if it is full, also before its idle time is over.
func (k *Keyed[K]) makeRoom(now time.Time) bool {
	b := k.oldest()
	if b == nil || !k.full(b, now) {
		return false
	}
	k.drop(b)
	return true
}

// untilRoom returns the time until makeRoom succeeds. If all buckets have waiting callers, it
// returns an estimate: the time to fill a bucket.
func (k *Keyed[K]) untilRoom(now time.Time) time.Duration {
	b := k.oldest()
	switch {
	case b == nil:
		return timeFor(float64(k.burst), k.limit)
	case k.full(b, now):
		return 0
	}
	// Rounded up, unlike timeFor: makeRoom removes only full buckets, because removing a bucket
	// with missing tokens would grant these twice.
	ns := math.Ceil((float64(k.burst) - k.level(b, now)) / float64(k.limit) * float64(time.Second))
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

func (k *Keyed[K]) noRoom(now time.Time) *tidegate.Error {
	wait := k.untilRoom(now)
	return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: wait,
		Message: fmt.Sprintf("all %d keys are in use, which is the limit; retry in %v",
			k.maxKeys, wait)}
}

func (k *Keyed[K]) oldest() *bucket[K] {
	if e := k.unused.Back(); e != nil {
		return e.Value.(*bucket[K])
	}
	return nil
}

func (k *Keyed[K]) full(b *bucket[K], now time.Time) bool {
	return k.level(b, now) >= float64(k.burst)
}

func (k *Keyed[K]) drop(b *bucket[K]) {
	k.unused.Remove(b.elem)
	delete(k.keys, b.key)
}
