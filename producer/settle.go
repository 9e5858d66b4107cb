package producer

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/transport"
)

// outcomePool reuses the slices of finished requests.
var outcomePool = sync.Pool{New: func() any { return new([]outcome) }}

// settle decides about each message of a request from its result, or from err if that is set. Then
// it updates the queue. It returns the messages that have ended, for wakeCallers, and if worker is
// true the next job.
func (t *topic) settle(r *request, results []transport.SendResult, err error, worker bool) (ended []*item, next job, ok bool) {
	c := &r.Call
	outs := c.oneOutcome[:min(len(c.items), 1)]
	if len(c.items) > 1 {
		pooled := outcomePool.Get().(*[]outcome)
		*pooled = slices.Grow((*pooled)[:0], len(c.items))[:len(c.items)]
		outs = *pooled
		defer func() {
			clear(outs)
			outcomePool.Put(pooled)
		}()
	}
	now := time.Now()
	failed := false
	for i, it := range c.items {
		outs[i] = outcome{it: it, err: err, ended: now}
		if err == nil {
			outs[i].receipt, outs[i].err = results[i].Receipt, results[i].Err
		}
		failed = failed || outs[i].err != nil
		if r.Lane != nil {
			outs[i].lane = r.Info.Endpoint
		}
	}
	t.mu.Lock()
	charged := t.charge(r, outs, now)
	if !charged || !failed && t.p.opts.OnAttempt == nil && t.p.observer == nil {
		return t.finish(r, outs, charged, worker) // the zero decision is that of a success
	}
	t.mu.Unlock()
	returned := false
	defer func() {
		if !returned { // OnAttempt has ended this goroutine
			t.mu.Lock()
			ended, _, _ = t.finish(r, outs, true, false)
			t.p.wakeCallers(ended)
		}
	}()
	t.decide(r, outs)
	for i := range outs {
		if l := t.p.observer; l != nil && !outs[i].skipped && r.Lane != nil {
			guard.Call("Options.Limiter", t.p.reportPanic, func() { l.Observe(outs[i].err) })
		}
		t.observe(len(r.Items), &outs[i], c.began)
	}
	returned = true
	t.mu.Lock()
	return t.finish(r, outs, true, worker)
}

// finish carries out the decisions about the messages of a request, and begins the next job that
// they make possible. The lock is held; finish releases it.
func (t *topic) finish(r *request, outs []outcome, charged, worker bool) (ended []*item, next job, ok bool) {
	now := time.Now()
	var spooled []string
	var waited []outcome
	ended = r.Call.oneEnded[:0]
	if charged {
		if t.p.spooler != nil {
			spooled = t.groupsToSpool(outs)
		}
		for i := range outs {
			if o := &outs[i]; o.it.state == pending && t.apply(o, r.Lane, spooled, now) {
				ended = append(ended, o.it)
			}
		}
		if r.Lane != nil {
			waited = t.adapt(r, outs, now)
		}
	}
	t.queue.Finished(r, now)
	for _, group := range spooled {
		t.spoolGroup(group, nil, nil, now)
	}
	ended = append(ended, t.hopeless(now, r.Call.items...)...)
	t.p.conclude(ended)
	next, ok = t.pump(now, nil, worker && len(waited) == 0)
	t.mu.Unlock()
	if len(waited) > 0 {
		t.p.wakeCallers(ended) // OnAttempt may end this goroutine
		t.report(r, waited)
		return nil, next, ok
	}
	return ended, next, ok
}

// report reports the messages that ended because they waited for a throttled lane.
func (t *topic) report(r *request, waited []outcome) {
	var late []*item
	for i := range waited {
		if waited[i].gone {
			late = append(late, waited[i].it)
		}
	}
	defer t.p.complete(late) // also if OnAttempt ends this goroutine
	for i := range waited {
		t.observe(len(r.Items), &waited[i], r.Call.began)
	}
}

// charge counts the attempt in each message of the request. It returns false if the request does
// not count as an attempt: if the lane had changed, or if the server rejected several messages
// because of one of them. In the latter case the request is repeated in halves, until the faulty
// message is alone. The lock is held.
func (t *topic) charge(r *request, outs []outcome, ended time.Time) bool {
	changed, refused := len(outs) > 0, len(outs) > 1
	for i := range outs {
		changed = changed && errors.Is(outs[i].err, transport.ErrLaneChanged)
		refused = refused && faultOf(outs[i].err) == MessageFault
	}
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
		if o.skipped = it.state != pending; o.skipped {
			continue
		}
		o.in = it.record(o.err, r.Call.began, ended)
		if tidegate.Classify(o.err) == tidegate.ClassThrottled && it.ctx.Err() == nil && r.Lane != nil {
			r.Lane.Deciding = true
		}
	}
	return true
}
