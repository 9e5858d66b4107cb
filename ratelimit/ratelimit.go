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
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
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

const (
	// decreaseGap is the shortest time between two decreases, so that the throttles of concurrent
	// requests count once.
	decreaseGap = 100 * time.Millisecond

	// measureWindow is the length of a window in which accepted events are counted.
	measureWindow = 500 * time.Millisecond
)

// A pace is the state of an [Adaptive]. Its methods are pure functions that return the next state.
type pace struct {
	limit     rate.Limit
	step      rate.Limit // added in each second; zero before the first throttle
	known     rate.Limit // below it the limit doubles in each second; zero if it never does
	learned   time.Time  // last change of known
	decreased time.Time  // last; zero before the first throttle
	grew      time.Time  // when limit was last brought up to date

	count   int       // events accepted since started
	started time.Time // of the current window; zero before the first event
	seen    rate.Limit
}

// accepted counts an event that the server accepted.
func (p pace) accepted(now time.Time) pace {
	p = p.measured(now)
	p.count++
	return p
}

// measured closes the current window if it is over.
func (p pace) measured(now time.Time) pace {
	switch since := now.Sub(p.started); {
	case p.started.IsZero():
		p.started = now
	case since >= measureWindow:
		p.seen = rate.Limit(float64(p.count) / since.Seconds())
		p.count, p.started = 0, now
	}
	return p
}

// throttled lowers the limit. The rate that the server accepted lately bounds it,
// so one throttle is enough after a capacity fell to a fraction.
func (p pace) throttled(now time.Time, o AdaptiveOptions) pace {
	p, _ = p.grown(now, o)
	p = p.measured(now)
	if !p.decreased.IsZero() && now.Sub(p.decreased) < decreaseGap {
		return p
	}
	base, seen := p.limit, p.measuredRate(now)
	p = p.learnt(seen, now, o)
	if seen > 0 || base == rate.Inf {
		base = min(base, seen)
	}
	// A rejection after a pause measures nothing: one throttle does not take more
	// than half of a limit.
	if p.limit != rate.Inf {
		base = max(base, p.limit/2)
	}
	p.limit = max(o.Floor, base*rate.Limit(o.Decrease))
	p.step = p.limit * rate.Limit(o.Increase)
	p.decreased, p.grew = now, now
	return p
}

// learnt updates the known rate at a throttle: seen is the rate at which the server accepted events
// lately. A lower one counts half in each second, because a window in which the throttling began
// shows too little.
func (p pace) learnt(seen rate.Limit, now time.Time, o AdaptiveOptions) pace {
	share := rate.Limit(o.Decrease)
	switch {
	case seen == 0 && p.limit == rate.Inf: // nothing is known
		p.known = rate.Inf
	case seen == 0:
	case p.known == 0, p.known == rate.Inf, seen*share >= p.known:
		p.known, p.learned = seen*share, now
	case now.Sub(p.learned) >= 2*measureWindow:
		p.known, p.learned = max(seen*share, p.known/2), now
	}
	return p
}

// grown brings the limit up to date. It also returns the tokens that a bucket without a bound
// regained since the last update.
func (p pace) grown(now time.Time, o AdaptiveOptions) (next pace, regained float64) {
	since := now.Sub(p.grew).Seconds()
	if since <= 0 {
		return p, 0
	}
	for _, ph := range p.phases(o) {
		part := min(since, ph.lasts)
		regained += ph.tokens(part)
		p.limit = ph.limit(part)
		if ph.doubles {
			p.step = max(p.step, p.limit*rate.Limit(o.Increase))
		}
		if since -= part; since <= 0 {
			break
		}
	}
	p.grew = now
	return p, regained
}

// until returns the time to regain the tokens if no throttle comes meanwhile, rounded to the
// nearest nanosecond like [timeFor]. The pace is up to date. A billionth of a token is 0: such a
// rest is a rounding error, which can be too small for a further wait to change it.
func (p pace) until(tokens float64, o AdaptiveOptions) time.Duration {
	if tokens <= 1e-9 || p.limit == rate.Inf {
		return 0
	}
	var wait float64
	for _, ph := range p.phases(o) {
		if all := ph.tokens(ph.lasts); tokens > all {
			tokens -= all
			wait += ph.lasts
			continue
		}
		return duration(wait + ph.time(tokens))
	}
	return math.MaxInt64
}

// phases returns how the limit changes from now on if no throttle comes. The last phase has no end.
// Up to the known rate the limit doubles in each second. Otherwise a server that rejected all
// events for some seconds would get hardly any events for hours.
func (p pace) phases(o AdaptiveOptions) []phase {
	var list []phase
	from, step := p.limit, p.step
	if top := min(p.known, o.Ceiling); step > 0 && from < top {
		list = append(list, phase{from: from, to: top, doubles: true, lasts: math.Log2(float64(top / from))})
		from, step = top, max(step, top*rate.Limit(o.Increase))
	}
	if step > 0 && from < o.Ceiling {
		list = append(list, phase{from: from, to: o.Ceiling, slope: step, lasts: float64((o.Ceiling - from) / step)})
		from = o.Ceiling
	}
	if from < rate.Inf || len(list) == 0 {
		list = append(list, phase{from: from, to: from, lasts: math.Inf(1)})
	}
	return list
}

// A phase is a time in which a limit doubles in each second, or grows by slope in each second.
type phase struct {
	from, to rate.Limit
	doubles  bool
	slope    rate.Limit
	lasts    float64 // seconds
}

// limit returns the limit t seconds after the begin.
func (ph phase) limit(t float64) rate.Limit {
	switch {
	case t >= ph.lasts:
		return ph.to
	case ph.doubles:
		return min(ph.to, ph.from*rate.Limit(math.Exp2(t)))
	}
	return min(ph.to, ph.from+ph.slope*rate.Limit(t))
}

// tokens returns the tokens that are regained in the first t seconds: the integral of the limit.
func (ph phase) tokens(t float64) float64 {
	switch {
	case t <= 0:
		return 0
	case ph.doubles:
		return float64(ph.limit(t)-ph.from) / math.Ln2
	}
	return t * float64(ph.from+ph.limit(t)) / 2
}

// time returns the seconds in which n tokens are regained: the inverse of tokens.
func (ph phase) time(n float64) float64 {
	from := float64(ph.from)
	if ph.doubles {
		return math.Log2(1 + n*math.Ln2/from)
	}
	return 2 * n / (from + math.Sqrt(from*from+2*float64(ph.slope)*n))
}

// measuredRate returns the rate at which the server accepted events lately: the
// higher one of the last window and of the current one, if that is long enough.
func (p pace) measuredRate(now time.Time) rate.Limit {
	since := now.Sub(p.started)
	if since < decreaseGap && p.seen > 0 {
		return p.seen
	}
	return max(p.seen, rate.Limit(float64(p.count)/max(since, decreaseGap/10).Seconds()))
}
