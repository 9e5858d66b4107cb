package ratelimit

import (
	"container/list"
	"fmt"
	"math"
	"time"

	"github.com/tidegate/tidegate"
	"golang.org/x/time/rate"
)

// A bucket is the state of one key, guarded by its Keyed's mu. It is either in
// the list of unused buckets or has callers waiting for it, so a bucket in
// use is never forgotten.
type bucket[K comparable] struct {
	key     K
	tokens  *rate.Limiter // never has reservations: only the caller with the turn takes tokens, those that are there
	used    time.Time     // when a caller last took, asked or waited
	callers int           // that wait
	waiting float64       // tokens they wait for
	turn    chan struct{} // of size 1: the caller that put something in may take tokens; nil until one waits
	elem    *list.Element // in Keyed.unused; nil if callers > 0
}

// timeFor returns how long it takes to regain that many tokens, to the nearest
// nanosecond: 0 if they are there. Half a nanosecond's worth may be missing
// then, which [rate.Limiter] lends: it rounds a wait down to whole nanoseconds. The
// bucket owes that, so the errors do not add up.
func timeFor(tokens float64, limit rate.Limit) time.Duration {
	switch {
	case tokens <= 0 || limit == rate.Inf:
		return 0
	case limit <= 0:
		return math.MaxInt64
	}
	ns := math.Round(tokens / float64(limit) * float64(time.Second))
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

// The methods of Keyed below are called with k.mu held.

// level returns b's tokens at now.
func (k *Keyed[K]) level(b *bucket[K], now time.Time) float64 {
	if k.limit == rate.Inf {
		return math.Inf(1)
	}
	return b.tokens.TokensAt(now)
}

// take removes n tokens from b, which are there.
func (*Keyed[K]) take(b *bucket[K], n int, now time.Time) { b.tokens.AllowN(now, n) }

// wait returns how long a new caller would wait for n tokens of b: those who
// wait already come first.
func (k *Keyed[K]) wait(b *bucket[K], n int, now time.Time) time.Duration {
	return timeFor(b.waiting+float64(n)-k.level(b, now), k.limit)
}

// use returns the bucket of key, a new one if there is none, and marks it as
// used. It returns nil if there is no room for a new one.
func (k *Keyed[K]) use(key K, now time.Time) *bucket[K] {
	// More than the one bucket that this call may add, so that what is to be
	// forgotten never piles up; few, so that no call takes long. Before the
	// look-up: the bucket that is returned must stay.
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

// leaveLocked takes a caller that waited for n tokens of b off the books.
func (k *Keyed[K]) leaveLocked(b *bucket[K], n int, now time.Time) {
	b.waiting -= float64(n)
	b.callers--
	if b.callers == 0 {
		b.waiting = 0 // a sum of large floats need not come back to 0
		b.used = now
		b.elem = k.unused.PushFront(b)
	}
}

// forget drops up to most buckets that were not used for the idle time,
// beginning with the one not used for the longest. A full bucket holds no more
// than a new one, so its key gains nothing. One that is not full keeps those
// behind it, for as long as it takes to fill, which is burst/limit at most.
func (k *Keyed[K]) forget(now time.Time, most int) {
	for range most {
		b := k.oldest()
		if b == nil || now.Sub(b.used) < k.idle || !k.full(b, now) {
			return
		}
		k.drop(b)
	}
}

// makeRoom drops the bucket not used for the longest though its idle time is
// not over, if it is full.
func (k *Keyed[K]) makeRoom(now time.Time) bool {
	b := k.oldest()
	if b == nil || !k.full(b, now) {
		return false
	}
	k.drop(b)
	return true
}

// untilRoom returns how long it takes until makeRoom succeeds, or the time to
// fill a bucket, as a guess, if all buckets have callers.
func (k *Keyed[K]) untilRoom(now time.Time) time.Duration {
	b := k.oldest()
	switch {
	case b == nil:
		return timeFor(float64(k.burst), k.limit)
	case k.full(b, now):
		return 0
	}
	// Rounded up, other than by timeFor: makeRoom wants the bucket really
	// full, since what a forgotten bucket owes nobody pays.
	ns := math.Ceil((float64(k.burst) - k.level(b, now)) / float64(k.limit) * float64(time.Second))
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

func (k *Keyed[K]) noRoom(now time.Time) *tidegate.Error {
	wait := k.untilRoom(now)
	return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: wait,
		Message: fmt.Sprintf("all of the %d keys that are remembered at most are in use; there may be room for another in %v",
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
