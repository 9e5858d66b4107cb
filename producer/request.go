package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
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
		msgs = append(msgs, it.msg)
	}
	results := t.p.lanes.SendLane(r.attempt.ctx, r.info, msgs)
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
	items, await := r.items, false
	if r.alive < len(items) {
		items = slices.DeleteFunc(slices.Clone(items), func(it *item) bool { return it.gone })
	}
	for i, it := range items {
		if share := it.share(now); i == 0 || share < r.share {
			r.share = share
		}
		await = await || it.attempts > 0
	}
	switch {
	case r.attempt.ctx != nil:
	case len(items) == 1:
		r.attempt = newAttempt(items[0].base(own != nil), await, r.share)
	default:
		// The request serves several callers, and lives until none is left.
		r.attempt = newAttempt(context.Background(), await, r.share)
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
	for i, it := range r.items {
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
		t.mu.Lock()
		if joined {
			t.queue.shorten(r, i, now)
			t.mu.Unlock()
			return
		}
		if !it.gone {
			e := it.fail(StopLimiter, fmt.Errorf("limiter: %w", err))
			if it.ctx.Err() != nil {
				e = it.contextEnded()
			}
			t.end(it, e, now)
			ended = append(ended, it)
		}
		t.mu.Unlock()
		t.p.complete(ended)
	}
}

// settle decides for each message of a request what follows its result, or err
// if that is set, and brings the queue up to date.
func (t *topic) settle(r *request, own *item, items []*item, results []transport.SendResult, err error, began time.Time) {
	ended := time.Now()
	outs := r.oneOutcome[:min(len(items), 1)]
	if len(items) > 1 {
		outs = make([]outcome, len(items))
	}
	for i, it := range items {
		outs[i] = outcome{it: it, receipt: results[i].Receipt, err: results[i].Err, ended: ended}
		if r.lane != nil {
			outs[i].lane = r.info.Endpoint
		}
		if err != nil {
			outs[i].err = err
		}
	}
	charged := t.charge(r, outs, ended)
	if charged {
		t.decide(own, outs)
		for i := range outs {
			if l := t.p.observer; l != nil && !outs[i].skipped && r.lane != nil {
				l.Observe(outs[i].err)
			}
			t.observe(r, &outs[i], began)
		}
	}

	var gone []*item
	now := time.Now()
	t.mu.Lock()
	for i := range outs {
		if o := &outs[i]; charged && !o.it.gone && t.apply(o, now) {
			gone = append(gone, o.it)
		}
	}
	var waited []outcome
	if charged && r.lane != nil {
		waited = t.adapt(r, outs, now)
	}
	for i := range waited {
		gone = append(gone, waited[i].it)
	}
	t.queue.finished(r, now)
	gone = append(gone, t.hopeless(now, r.items...)...)
	t.pump(nil)
	t.mu.Unlock()
	for i := range waited {
		t.observe(r, &waited[i], began)
	}
	t.p.complete(gone)
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
		r.lane.MaxMessages = 1
		for i := range outs {
			outs[i].it.changes++
			changed = changed && outs[i].it.changes <= maxLaneChanges
		}
	}
	if refused {
		for i := range outs {
			outs[i].it.limit = (len(outs) + 1) / 2
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
			if r.lane != nil {
				r.lane.deciding = true
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
