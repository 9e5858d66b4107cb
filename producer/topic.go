package producer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/producer/internal/retry"
	"github.com/tidegate/tidegate/transport"
)

// A topic is the producer's state of one topic: its queue, and the known state of the
// server.
//
// Its lock guards the queue and the state of the items in it. The locks acquired under it are the
// ledger's, the functions', the spooler's and, in Holds, the spool's; none of them is held while
// another lock is acquired. It is never held during a call of the transport or of the user's
// functions.
type topic struct {
	p     *Producer
	name  string
	users atomic.Int64 // the producer keeps the topic while this is not 0

	good   atomic.Bool            // the server accepted a send to the topic
	answer atomic.Pointer[answer] // the last response with settings; nil before the first
	asking chan struct{}          // holds a token while a goroutine requests the settings

	mu       sync.Mutex
	spooling map[string]int // message groups with messages that wait for a write to the spool
	down     bool           // the last messages with a result went to the spool after failed attempts

	queue  queue
	lookup attempt     // of the last ask
	timer  *time.Timer // calls wake at timerAt; nil before its first use
	wakeAt time.Time   // zero if the timer is stopped

	watches map[<-chan struct{}]*watch // by Done of their ctx
}

func newTopic(p *Producer, name string) *topic {
	t := &topic{p: p, name: name, asking: make(chan struct{}, 1), watches: map[<-chan struct{}]*watch{}}
	t.queue = plan.New[*item, roundTrip]()
	return t
}

// submit queues messages. If own is among them and can be sent at once, submit returns the job for
// it, which the caller should do on its own goroutine.
func (t *topic) submit(own *item, items ...*item) (job, bool) {
	var ended []*item
	var begun *watch
	now := time.Now()
	t.mu.Lock()
	for _, it := range items {
		switch {
		case it.gone: // Close has aborted it
		case t.diverts(it):
			t.spool(it, it.fail(StopSpool, nil))
		default:
			t.queue.Add(&it.Item, now)
			if it.done != nil { // items has no other one then
				begun = t.watch(it)
			}
		}
	}
	ended = t.hopeless(now, items...)
	j, ok := t.pumpAt(now, own)
	t.mu.Unlock()
	if begun != nil {
		begun.start()
	}
	t.p.complete(ended)
	return j, ok
}

// pump starts a worker for each job that is ready. A job for own alone it returns instead. The lock
// is held.
func (t *topic) pump(own *item) (job, bool) { return t.pumpAt(time.Now(), own) }

func (t *topic) pumpAt(now time.Time, own *item) (job, bool) {
	t.queue.Wake(now)
	for {
		j, ok := t.next(now, own)
		if !ok {
			t.schedule(now)
			return job{}, false
		}
		if own != nil && j.Ask != nil && j.Ask.Head == &own.Item {
			t.schedule(now)
			return j, true
		}
		t.p.ledger.Running.Go(func() { t.work(j) }) // a message is pending, so Close does not wait for Running yet
	}
}

// next returns the next job of the queue. It returns none while Close aborts the messages. The lock
// is held.
func (t *topic) next(now time.Time, own *item) (job, bool) {
	if t.p.closed.Load() {
		return job{}, false
	}
	return t.queue.Next(now, own.queued())
}

// schedule sets the timer for the next event of the queue. The lock is held.
func (t *topic) schedule(now time.Time) {
	at := t.queue.WakeAt(now)
	if t.p.closed.Load() { // the messages are about to leave
		at = time.Time{}
	}
	switch {
	case at.Equal(t.wakeAt):
	case at.IsZero():
		t.wakeAt = at
		t.timer.Stop()
	case t.timer == nil:
		t.wakeAt = at
		t.timer = time.AfterFunc(at.Sub(now), t.wake)
	default:
		t.wakeAt = at
		t.timer.Reset(at.Sub(now))
	}
}

func (t *topic) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wakeAt = time.Time{}
	t.pump(nil)
}

// work does jobs until there are none. Each lane has one worker for each of its requests.
func (t *topic) work(j job) {
	for ok := true; ok; {
		j, ok = t.do(j, nil)
	}
}

// do does a job and returns the next one. If own is set, it does the jobs of that message on the
// caller's goroutine and with the caller's ctx.
func (t *topic) do(j job, own *item) (job, bool) {
	if j.Ask != nil {
		j.Request = t.route(j.Ask, own)
	}
	var ended []*item
	if j.Request != nil {
		ended = t.send(j.Request, own)
	}
	if own != nil {
		t.p.release(ended)
		return t.again(own)
	}
	t.mu.Lock()
	now := time.Now()
	t.queue.Wake(now)
	next, ok := t.next(now, nil)
	t.pump(nil)
	t.mu.Unlock()
	if ok && len(ended) > 1 {
		// The next request does not wait for the wake-ups. It needs more stack than they do,
		// and this goroutine has it already.
		t.p.ledger.Running.Go(func() { t.p.release(ended) })
	} else {
		t.p.release(ended)
	}
	return next, ok
}

// again returns the next job that the caller of own should do.
func (t *topic) again(own *item) (job, bool) {
	if own.ctx.Err() != nil {
		t.leave(own, false)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.gone {
		t.pump(nil)
		return job{}, false
	}
	return t.pump(own)
}

// route requests the lanes of a, and returns the request that can begin. An error of the transport
// is a failed attempt of all messages that waited for the ask, because none of them has a lane.
func (t *topic) route(a *ask, own *item) *request {
	began := time.Now()
	var lanes []transport.Lane
	var err error
	if ctx, ok := t.begin(a, own); ok {
		lanes, err = t.ask(ctx, a, own)
	}
	now := time.Now()
	t.mu.Lock()
	r := t.queue.Routed(a, lanes, now, own.queued())
	lookup := t.lookup
	var ended []*item
	if err == nil {
		if r != nil {
			t.pump(nil) // other lanes may be free
		} else {
			ended = t.hopeless(now, a.Head.Of)
		}
		if r != nil && len(r.Items) == 1 && r.Items[0] == a.Head {
			r.Call.attempt = lookup
			t.lookup = attempt{}
		} else {
			lookup.cancel()
		}
		t.mu.Unlock()
		t.p.complete(ended)
		return r
	}
	failed := t.queue.Withdraw(a)
	t.mu.Unlock()
	lookup.cancel()
	if len(failed.Items) > 0 {
		items := make([]*item, len(failed.Items))
		for i, planned := range failed.Items {
			items[i] = planned.Of
		}
		t.p.release(t.settle(failed, own, items, make([]transport.SendResult, len(items)), err, began))
	}
	return r
}

// ask requests the lanes of a from the transport, until the time of its first message's attempt is
// over. It returns the lanes so far and the error of the next one. The end of own's ctx and Close
// are not errors of the transport.
func (t *topic) ask(ctx context.Context, a *ask, own *item) ([]transport.Lane, error) {
	lanes := a.Buffer()
	for r := range a.Lanes {
		l, err := t.p.lanes.Lane(ctx, r)
		if err != nil {
			if unwanted := own != nil && own.ctx.Err() != nil || t.p.closed.Load(); unwanted {
				err = nil
			}
			return lanes, err
		}
		lanes = append(lanes, l)
	}
	return lanes, nil
}

// begin creates the ctx of an ask. It returns false if the ask's message has ended.
func (t *topic) begin(a *ask, own *item) (context.Context, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	head := a.Head.Of
	t.lookup = newAttempt(head.base(own != nil), head.history.Attempts > 0, head.Share(now))
	return t.lookup.ctx, !head.gone
}

// base returns the ctx of an attempt for one message. On the caller's goroutine it is the caller's
// ctx. Otherwise it is one that does not end with the caller's, because the message itself watches
// the end of that ctx.
func (it *item) base(own bool) context.Context {
	if own {
		return it.ctx
	}
	return context.WithoutCancel(it.ctx) // keeps the values
}

// newAttempt creates the ctx of an attempt.
func newAttempt(base context.Context, await bool, share time.Duration) (a attempt) {
	if await {
		base = transport.AwaitConnection(base)
	}
	a.ctx, a.cancel = context.WithTimeoutCause(base, share, errAttemptTimeout)
	return a
}

// hopeless ends the messages that wait for a pause that leaves no time before their deadline. The
// lock is held.
func (t *topic) hopeless(now time.Time, items ...*item) (ended []*item) {
	if !t.queue.AnyPaused(now) {
		return nil
	}
	for _, it := range items {
		if it.gone || !it.Queued() {
			continue
		}
		l := t.queue.PauseOf(&it.Item, now)
		if l == nil {
			continue
		}
		needed := retry.Sum(l.PausedUntil.Sub(now), it.limits.Floor)
		if left, ok := it.left(now); ok && left < needed {
			if t.endQueued(it, it.tooLate(needed, left, l.Throttle), now) {
				ended = append(ended, it)
			}
		}
	}
	return ended
}

// endItem ends a message with an error, or without one if the server accepted it. If endItem
// returns true, the caller has to call complete for the item afterwards. Otherwise the message
// moves to the spool. The lock is held.
func (t *topic) endItem(it *item, err *SendError, now time.Time) (ended bool) {
	it.gone, it.err = true, err
	it.leaveWatch()
	if r := t.queue.Remove(&it.Item, now); r != nil {
		r.Call.cancel()
	}
	if t.p.spools(it, err) {
		t.spool(it, err)
		return false
	}
	return true
}

// leave ends a message whose ctx ended or that Close aborts. If the message is in a request under
// way, that request counts as an attempt, and the message does not wait for its response. leave
// returns false if the message had ended before.
func (t *topic) leave(it *item, aborted bool) (left bool) {
	now := time.Now()
	t.mu.Lock()
	if it.gone {
		t.mu.Unlock()
		return false
	}
	cause := errProducerClosed
	if !aborted {
		cause = endCause(it.ctx.Err(), context.Cause(it.ctx))
	}
	o := outcome{it: it, ended: now, skipped: true}
	r := it.Request()
	if r != nil && r.Call.sent {
		it.record(&tidegate.Error{
			Op: "SendMessage", Subject: t.name, Endpoint: r.Lane.Endpoint, MaybeStored: true,
			Message: "the call ended before the response", Err: cause,
		}, r.Call.began, now)
		o.err, o.skipped, o.in = it.history.Last, false, it.inputs(now, now, t.good.Load())
		o.in.OfError(o.err)
		o.in.Closed = aborted
		o.decision = retry.Decide(o.in)
	}
	it.aborted = aborted
	var ended bool
	if aborted {
		ended = t.endItem(it, it.fail(StopClosed, cause), now)
		if t.lookup.cancel != nil {
			t.lookup.cancel()
		}
	} else {
		ended = t.endAtDeadline(it, it.fail(StopContext, cause), now)
	}
	t.pump(nil)
	t.mu.Unlock()
	if !o.skipped {
		t.observe(len(r.Items), &o, r.Call.began)
	}
	if ended {
		t.p.complete([]*item{it})
	}
	return true
}
