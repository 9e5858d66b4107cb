package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// errAttemptTimeout is the cause of an attempt's own deadline. It does not match
// context.DeadlineExceeded: the caller's deadline has not passed.
var errAttemptTimeout = fmt.Errorf("%w: no response within the attempt's share of the time", tidegate.ErrUnavailable)

// maxLaneChanges bounds the changed lanes in a row that are no attempt. A
// transport that reports nothing else would otherwise keep the producer busy.
const maxLaneChanges = 3

// limitPatience is how long a request waits for the limiter to admit one more message.
const limitPatience = time.Millisecond

// A request is a planned request and the call of the transport for it.
type request struct {
	plan.Request

	attempt attempt   // without a ctx as long as the request waits for the limiter
	sent    bool      // the transport has been called, and has not returned
	began   time.Time // then

	oneItem    [1]*item // saves allocations
	oneMessage [1]*tidegate.Message
	oneOutcome [1]outcome
}

// newRequest returns the plan of a new request.
func newRequest() *plan.Request {
	r := &request{}
	r.Owner = r
	return &r.Request
}

// ownerOf returns the request that a planned request is a part of.
func ownerOf(r *plan.Request) *request { return r.Owner.(*request) }

// cancel ends the call of the transport, if there is one.
func (r *request) cancel() {
	if r.attempt.cancel != nil {
		r.attempt.cancel()
	}
}

// An attempt is the ctx of a job. The request of a single message goes on with the
// ctx of its ask: both are one attempt.
type attempt struct {
	ctx    context.Context //nolint:containedctx // lives as long as the job
	cancel context.CancelFunc
}

// send carries out a request, on the goroutine of own's caller if own is set.
func (t *topic) send(r *request, own *item) {
	if l := t.p.opts.Limiter; l != nil {
		t.limit(l, r)
	}
	items := t.start(r, own)
	if len(items) == 0 {
		r.attempt.cancel()
		t.settle(r, own, nil, nil, nil, r.began)
		return
	}
	msgs := r.oneMessage[:0]
	for _, it := range items {
		msgs = append(msgs, it.Message)
	}
	results := t.p.lanes.SendLane(r.attempt.ctx, r.Info, msgs)
	r.attempt.cancel()
	var err error
	if len(results) != len(msgs) {
		results = make([]transport.SendResult, len(msgs))
		err = &tidegate.Error{
			Op: "SendMessage", Subject: t.name, MaybeStored: true,
			Message: fmt.Sprintf("the transport returned %d results for %d messages", len(results), len(msgs)),
		}
	}
	t.settle(r, own, items, results, err, r.began)
}

// start makes the ctx of a request and returns the messages that are still wanted.
// From then on a message that leaves may have been stored.
func (t *topic) start(r *request, own *item) []*item {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	var shortest time.Duration
	await := false
	items := r.oneItem[:0]
	if r.Alive > 1 {
		items = make([]*item, 0, r.Alive)
	}
	for _, planned := range r.Items {
		it := owner(planned)
		if it.gone {
			continue
		}
		if share := it.Share(now); len(items) == 0 || share < shortest {
			shortest = share
		}
		await = await || it.attempts > 0
		items = append(items, it)
	}
	switch {
	case r.attempt.ctx != nil:
	case len(items) == 1:
		r.attempt = newAttempt(items[0].base(own != nil), await, shortest)
	default:
		// The request serves several callers, and lives until none is left.
		r.attempt = newAttempt(context.Background(), await, shortest)
	}
	r.sent, r.began = len(items) > 0, now
	return items
}

// limit asks the limiter for each message of the request. It waits for the first
// one as long as that has time. The others join if they are admitted within
// limitPatience, and return to the queue otherwise: a request of many messages that
// waited for all of them would reach the server as one burst.
func (t *topic) limit(l ratelimit.Limiter, r *request) {
	r.cancel() // the time of the attempt begins after the wait
	joined := false
	patience := time.Now().Add(limitPatience)
	for i, planned := range r.Items {
		it := owner(planned)
		t.mu.Lock()
		skip := it.gone || it.attempts > 0 && t.p.observer != nil
		ctx, cancel := context.WithCancel(it.ctx)
		if joined {
			ctx, cancel = context.WithDeadline(it.ctx, patience)
		}
		r.attempt.cancel, r.attempt.ctx = cancel, nil // Close ends the wait
		t.mu.Unlock()
		if skip {
			cancel()
			continue
		}
		err := ratelimit.Wait(ctx, l, 1)
		cancel()
		if err == nil {
			joined = true
			patience = time.Now().Add(limitPatience)
			continue
		}
		now := time.Now()
		var ended []*item
		stop := false
		t.mu.Lock()
		if joined {
			t.queue.Shorten(&r.Request, i, now)
			t.mu.Unlock()
			return
		}
		if !it.gone {
			e := it.fail(StopLimiter, fmt.Errorf("limiter: %w", err))
			if it.ctx.Err() != nil {
				e = it.contextEnded()
			}
			stop = t.p.spools(it, e)
			if stop { // its message group has to follow it
				t.queue.Shorten(&r.Request, i+1, now)
			}
			if t.endItem(it, e, now) {
				ended = append(ended, it)
			}
			if stop && it.Message.MessageGroup != "" {
				t.sweep(it.Message.MessageGroup, nil, nil, now)
			}
		}
		t.mu.Unlock()
		t.p.complete(ended)
		if stop {
			return
		}
	}
}

// outcomePool has the slices of finished requests, for further ones.
var outcomePool = sync.Pool{New: func() any { return new([]outcome) }}

// settle decides for each message of a request what follows its result, or err
// if that is set, and brings the queue up to date.
func (t *topic) settle(r *request, own *item, items []*item, results []transport.SendResult, err error, began time.Time) {
	ended := time.Now()
	outs := r.oneOutcome[:min(len(items), 1)]
	if len(items) > 1 {
		kept := outcomePool.Get().(*[]outcome)
		*kept = slices.Grow((*kept)[:0], len(items))[:len(items)]
		outs = *kept
		defer func() {
			clear(outs)
			outcomePool.Put(kept)
		}()
	}
	for i, it := range items {
		outs[i] = outcome{it: it, receipt: results[i].Receipt, err: results[i].Err, ended: ended}
		if r.Lane != nil {
			outs[i].lane = r.Info.Endpoint
		}
		if err != nil {
			outs[i].err = err
		}
	}
	charged := t.charge(r, outs, ended)
	if charged {
		t.decide(own, outs)
		for i := range outs {
			if l := t.p.observer; l != nil && !outs[i].skipped && r.Lane != nil {
				l.Observe(outs[i].err)
			}
			t.observe(len(r.Items), &outs[i], began)
		}
	}

	var gone []*item
	var swept []string
	now := time.Now()
	t.mu.Lock()
	if charged {
		swept = t.sweeping(outs)
	}
	for i := range outs {
		if o := &outs[i]; charged && !o.it.gone && t.apply(o, swept, now) {
			gone = append(gone, o.it)
		}
	}
	var waited []outcome
	if charged && r.Lane != nil {
		waited = t.adapt(&r.Request, outs, now)
	}
	t.queue.Finished(&r.Request, now)
	for _, group := range swept {
		t.sweep(group, nil, nil, now)
	}
	gone = append(gone, t.hopeless(now, items...)...)
	t.p.conclude(gone)
	t.pump(nil)
	t.mu.Unlock()
	t.p.release(gone)
	var late []*item
	for i := range waited {
		t.observe(len(r.Items), &waited[i], began)
		if waited[i].gone {
			late = append(late, waited[i].it)
		}
	}
	t.p.complete(late)
}

// charge counts the attempt in each message of the request. It returns false if
// the request was no attempt: if the lane had changed, or if the server refused
// all of several messages for a fault of one of them. Such a request is repeated
// in halves, until the message at fault is alone.
func (t *topic) charge(r *request, outs []outcome, ended time.Time) bool {
	changed, refused := len(outs) > 0, len(outs) > 1
	for i := range outs {
		changed = changed && errors.Is(outs[i].err, transport.ErrLaneChanged)
		refused = refused && faultOf(outs[i].err) == MessageFault
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if changed {
		r.Lane.MaxMessages = 1
		for i := range outs {
			outs[i].it.changes++
			changed = changed && outs[i].it.changes <= maxLaneChanges
		}
	}
	if refused {
		for i := range outs {
			outs[i].it.Limit = (len(outs) + 1) / 2
		}
	}
	r.sent = false // a message that leaves from here on does not leave a request under way
	if changed || refused {
		return false
	}
	for i := range outs {
		o := &outs[i]
		it := o.it
		if o.skipped = it.gone; o.skipped {
			continue
		}
		it.attempts++
		it.changes = 0
		it.last = o.err
		it.maybe = it.maybe || maybeStored(o.err)
		if transport.Classify(o.err) == transport.Throttled && it.ctx.Err() == nil {
			if ended.Before(it.charged) { // the attempt takes the place of the wait
				it.waited--
				it.throttles--
				it.charged = time.Time{}
			}
			it.throttle(ended)
			if r.Lane != nil {
				r.Lane.Deciding = true
			}
		}
	}
	return true
}

func (it *item) throttle(now time.Time) {
	it.throttles++
	if it.throttledSince.IsZero() {
		it.throttledSince = now
	}
}
