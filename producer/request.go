package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/copies"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// errAttemptTimeout is the cause of an attempt's own deadline. It does not match
// context.DeadlineExceeded: the caller's deadline has not passed.
var errAttemptTimeout = fmt.Errorf("%w: no response within the attempt's share of the time", tidegate.ErrUnavailable)

// maxLaneChanges bounds the consecutive lane changes that do not count as attempts. Otherwise a
// transport that always reports a change would loop forever.
const maxLaneChanges = 3

// limitPatience bounds the wait for each further message at the limiter.
const limitPatience = time.Millisecond

// A roundTrip is the call of the transport for a request.
type roundTrip struct {
	attempt attempt   // without a ctx while the request waits for the limiter
	sent    bool      // the transport was called and has not returned
	began   time.Time // start of that call

	messages []*tidegate.Message // for the transport
	copies   *copies.Set         // their memory; nil if they are the items' messages

	oneItem    [1]*item // saves an allocation
	oneMessage [1]*tidegate.Message
	oneOutcome [1]outcome
}

// The plan of a topic.
type (
	queue   = plan.Queue[*item, roundTrip]
	lane    = plan.Lane[*item, roundTrip]
	ask     = plan.Ask[*item, roundTrip]
	request = plan.Request[*item, roundTrip]
	job     = plan.Job[*item, roundTrip]
)

// cancel cancels the call of the transport, if there is one.
func (c *roundTrip) cancel() {
	if c.attempt.cancel != nil {
		c.attempt.cancel()
	}
}

// An attempt is the ctx of a job. A request with a single message continues with the ctx of its
// ask, because both are one attempt.
type attempt struct {
	ctx    context.Context //nolint:containedctx // lives as long as the job
	cancel context.CancelFunc
}

// send carries out a request. It runs on the goroutine of own's caller if own is set. It returns
// the messages that have ended, for release.
func (t *topic) send(r *request, own *item) (ended []*item) {
	if l := t.p.opts.Limiter; l != nil {
		t.limit(l, r)
	}
	items := t.start(r, own)
	if len(items) == 0 {
		r.Call.attempt.cancel()
		return t.settle(r, own, nil, nil, nil, r.Call.began)
	}
	results := t.p.lanes.SendLane(r.Call.attempt.ctx, r.Info, r.Call.messages)
	r.Call.attempt.cancel()
	r.Call.copies.Free()
	var err error
	if len(results) != len(items) {
		results = make([]transport.SendResult, len(items))
		err = &tidegate.Error{
			Op: "SendMessage", Subject: t.name, MaybeStored: true,
			Message: fmt.Sprintf("the transport returned %d results for %d messages", len(results), len(items)),
		}
	}
	return t.settle(r, own, items, results, err, r.Call.began)
}

// start creates the ctx of a request and returns the messages that are still pending. From then on
// a message that ends may have been stored.
func (t *topic) start(r *request, own *item) []*item {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	var shortest time.Duration
	await := false
	items := r.Call.oneItem[:0]
	if r.Alive > 1 {
		items = make([]*item, 0, r.Alive)
	}
	for _, planned := range r.Items {
		it := planned.Of
		if it.gone {
			continue
		}
		if share := it.Share(now); len(items) == 0 || share < shortest {
			shortest = share
		}
		await = await || it.history.Attempts > 0
		items = append(items, it)
	}
	switch {
	case r.Call.attempt.ctx != nil:
	case len(items) == 1:
		r.Call.attempt = newAttempt(items[0].base(own != nil), await, shortest)
	default:
		// The request serves several callers. It ends when all of them have left.
		r.Call.attempt = newAttempt(context.Background(), await, shortest)
	}
	r.Call.sent, r.Call.began = len(items) > 0, now
	r.Call.messages = r.Call.oneMessage[:0]
	for _, it := range items {
		r.Call.messages = append(r.Call.messages, it.Message)
	}
	if own == nil { // the callers may leave before the end of the request
		r.Call.copies = copies.Of(r.Call.messages)
		r.Call.messages = r.Call.copies.Messages
	}
	return items
}

// limit waits for the limiter's permission for each message of the request. It waits for the first
// message as long as that message can. A further message joins if it is permitted within
// limitPatience, and otherwise returns to the queue. Without that bound, a request with many
// messages would reach the server as one burst.
func (t *topic) limit(l ratelimit.Limiter, r *request) {
	r.Call.cancel() // the attempt's time begins after the wait
	joined := false
	patience := time.Now().Add(limitPatience)
	for i, planned := range r.Items {
		it := planned.Of
		t.mu.Lock()
		gone := it.gone
		skip := gone || it.history.Attempts > 0 && t.p.observer != nil
		ctx, cancel := context.WithCancel(it.ctx)
		if joined {
			ctx, cancel = context.WithDeadline(it.ctx, patience)
		}
		r.Call.attempt.cancel, r.Call.attempt.ctx = cancel, nil // Close ends the wait
		t.mu.Unlock()
		if skip {
			cancel()
			joined = joined || !gone // a retry needs no permission; the next message must not overtake it
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
			t.queue.Shorten(r, i, now)
			t.pump(nil) // another lane may be free
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
				t.queue.Shorten(r, i+1, now)
			}
			if t.endItem(it, e, now) {
				ended = append(ended, it)
			}
			if stop && it.Message.MessageGroup != "" {
				t.spoolGroup(it.Message.MessageGroup, nil, nil, now)
			}
			t.pump(nil)
		}
		t.mu.Unlock()
		t.p.complete(ended)
		if stop {
			return
		}
	}
}

// outcomePool reuses the slices of finished requests.
var outcomePool = sync.Pool{New: func() any { return new([]outcome) }}

// settle decides about each message of a request from its result, or from err if that is set. Then
// it updates the queue. It returns the messages that have ended, for release.
func (t *topic) settle(r *request, own *item, items []*item, results []transport.SendResult, err error, began time.Time) (gone []*item) {
	ended := time.Now()
	outs := r.Call.oneOutcome[:min(len(items), 1)]
	if len(items) > 1 {
		pooled := outcomePool.Get().(*[]outcome)
		*pooled = slices.Grow((*pooled)[:0], len(items))[:len(items)]
		outs = *pooled
		defer func() {
			clear(outs)
			outcomePool.Put(pooled)
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

	var spooled []string
	now := time.Now()
	t.mu.Lock()
	if charged {
		spooled = t.groupsToSpool(outs)
	}
	for i := range outs {
		if o := &outs[i]; charged && !o.it.gone && t.apply(o, r.Lane, spooled, now) {
			gone = append(gone, o.it)
		}
	}
	var waited []outcome
	if charged && r.Lane != nil {
		waited = t.adapt(r, outs, now)
	}
	t.queue.Finished(r, now)
	for _, group := range spooled {
		t.spoolGroup(group, nil, nil, now)
	}
	gone = append(gone, t.hopeless(now, items...)...)
	t.p.conclude(gone)
	t.mu.Unlock()
	var late []*item
	for i := range waited {
		t.observe(len(r.Items), &waited[i], began)
		if waited[i].gone {
			late = append(late, waited[i].it)
		}
	}
	t.p.complete(late)
	return gone
}

// charge counts the attempt in each message of the request. It returns false if the request does
// not count as an attempt: if the lane had changed, or if the server rejected several messages
// because of one of them. In the latter case the request is repeated in halves, until the faulty
// message is alone.
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
	r.Call.sent = false // a message that ends from here on is not in a request under way
	if changed || refused {
		return false
	}
	for i := range outs {
		o := &outs[i]
		it := o.it
		if o.skipped = it.gone; o.skipped {
			continue
		}
		it.record(o.err, r.Call.began, ended)
		if tidegate.Classify(o.err) == tidegate.ClassThrottled && it.ctx.Err() == nil && r.Lane != nil {
			r.Lane.Deciding = true
		}
	}
	return true
}
