package producer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A topic is all that the producer keeps of a topic: its queue, and what it
// learned of the server.
//
// Its lock guards the queue and the state of the items in it. No other lock is
// acquired under it, and it is never held during a call of the transport or of
// the user's functions.
type topic struct {
	p     *Producer
	name  string
	users atomic.Int64 // while it is not 0 the producer does not forget the topic

	good   atomic.Bool            // a send to it was accepted
	answer atomic.Pointer[answer] // of the server, as last asked; nil before
	asking chan struct{}          // holds a token while one goroutine asks

	mu     sync.Mutex
	queue  queue
	asked  *ask        // the last one
	timer  *time.Timer // calls wake at timerAt; nil before it is first needed
	wakeAt time.Time   // zero: the timer is stopped
}

func newTopic(p *Producer, name string) *topic {
	t := &topic{p: p, name: name, asking: make(chan struct{}, 1)}
	t.queue.groups = make(map[string]*unit)
	t.queue.share = (*item).share
	return t
}

// submit queues messages. It returns a job that the caller should do if one of
// them, own, can be sent at once; then the caller's goroutine does it.
func (t *topic) submit(own *item, items ...*item) (job, bool) {
	var ended []*item
	now := time.Now()
	t.mu.Lock()
	for _, it := range items {
		if !it.gone { // its ctx may have ended already
			t.queue.add(it, now)
		}
	}
	ended = t.hopeless(now, items...)
	j, ok := t.pump(own)
	t.mu.Unlock()
	t.p.complete(ended)
	return j, ok
}

// pump starts a worker for each job that can be done now, except for one that
// concerns own alone, which it returns. The lock is held.
func (t *topic) pump(own *item) (job, bool) {
	now := time.Now()
	t.queue.wake(now)
	for {
		j, ok := t.queue.next(now, own)
		if !ok {
			t.schedule(now)
			return job{}, false
		}
		if own != nil && j.ask != nil && j.ask.head == own {
			t.schedule(now)
			return j, true
		}
		t.p.ledger.running.Go(func() { t.work(j) }) // a message is pending, so Close does not wait yet
	}
}

// schedule has the queue woken when it wants to. The lock is held.
func (t *topic) schedule(now time.Time) {
	at := t.queue.wakeAt(now)
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

// work does jobs until there are none. Each lane has as many workers as it may
// have requests.
func (t *topic) work(j job) {
	for ok := true; ok; {
		j, ok = t.do(j, nil)
	}
}

// do does a job and returns the next one. With own set, it does the jobs of that
// message, on its caller's goroutine and with its ctx.
func (t *topic) do(j job, own *item) (job, bool) {
	if j.ask != nil {
		j.req = t.route(j.ask, own)
	}
	if j.req != nil {
		t.send(j.req, own)
	}
	if own != nil && own.ctx.Err() != nil {
		t.leave(own, false)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if own != nil {
		if own.gone {
			t.pump(nil)
			return job{}, false
		}
		return t.pump(own)
	}
	now := time.Now()
	t.queue.wake(now)
	next, ok := t.queue.next(now, nil)
	t.pump(nil)
	return next, ok
}

// route asks for the lanes of a, and returns the request that can begin. An
// error of the transport ends an attempt of all messages that waited for the ask:
// there is no lane for any of them.
func (t *topic) route(a *ask, own *item) *request {
	began := time.Now()
	var lanes []transport.Lane
	var err error
	if t.begin(a, own) {
		lanes, err = t.ask(a, own)
	}
	now := time.Now()
	t.mu.Lock()
	r := t.queue.routed(a, lanes, now, own)
	var ended []*item
	if err == nil {
		if r != nil {
			t.pump(nil) // other lanes may be free
		} else {
			ended = t.hopeless(now, a.head)
		}
		if r != nil && len(r.items) == 1 && r.items[0] == a.head {
			r.attempt = a.attempt
			t.asked = nil
		} else {
			a.attempt.cancel()
		}
		t.mu.Unlock()
		t.p.complete(ended)
		return r
	}
	failed := t.queue.withdraw(a)
	t.mu.Unlock()
	a.attempt.cancel()
	if len(failed.items) > 0 {
		t.settle(failed, own, failed.items, make([]transport.SendResult, len(failed.items)), err, began)
	}
	return r
}

// ask asks the transport for the lanes of a, until the share of its first
// message is over. It returns those that it has, and the error of the next one.
// The end of own's ctx is no error of the transport, nor is Close.
func (t *topic) ask(a *ask, own *item) ([]transport.Lane, error) {
	lanes := a.oneLane[:0]
	for _, u := range a.units {
		r := a.request
		r.MessageGroup = u.group
		l, err := t.p.lanes.Lane(a.attempt.ctx, r)
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

// begin makes the ctx of an ask. It returns false if the ask's message has gone.
func (t *topic) begin(a *ask, own *item) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	a.attempt = newAttempt(a.head.base(own != nil), a.head.attempts > 0, a.head.share(now))
	t.asked = a
	return !a.head.gone
}

// base is the ctx of an attempt for one message: the caller's if the attempt is on
// the caller's goroutine, or else one that does not end with it: then the message
// itself watches its end.
func (it *item) base(own bool) context.Context {
	if own {
		return it.ctx
	}
	return context.WithoutCancel(it.ctx) // its values
}

// newAttempt makes the ctx of an attempt.
func newAttempt(base context.Context, await bool, share time.Duration) (a attempt) {
	if await {
		base = transport.AwaitConnection(base)
	}
	a.ctx, a.cancel = context.WithTimeoutCause(base, share, errAttemptTimeout)
	return a
}

// hopeless ends those of the items that wait for a pause which ends too close to
// their deadline. The lock is held.
func (t *topic) hopeless(now time.Time, items ...*item) (ended []*item) {
	if !t.queue.anyPaused(now) {
		return nil
	}
	for _, it := range items {
		if it.gone || it.unit == nil || it.req != nil {
			continue
		}
		l := t.queue.pauseOf(it, now)
		if l == nil {
			continue
		}
		needed := l.pausedUntil.Sub(now) + it.limits.floor
		if left, ok := it.left(now); ok && left < needed {
			t.end(it, it.tooLate(needed, left, l.throttle), now)
			ended = append(ended, it)
		}
	}
	return ended
}

// end ends a message with an error, or without one if it was accepted. The
// lock is held; complete has to be called for the item afterwards.
func (t *topic) end(it *item, err *SendError, now time.Time) {
	it.gone, it.err = true, err
	if r := t.queue.remove(it, now); r != nil {
		r.cancel()
	}
}

// leave ends a message whose ctx ended, or that Close aborts. If a request with
// it is under way, that was an attempt, whose response is not awaited.
func (t *topic) leave(it *item, aborted bool) {
	now := time.Now()
	t.mu.Lock()
	if it.gone {
		t.mu.Unlock()
		return
	}
	cause := errProducerClosed
	if !aborted {
		cause = endCause(it.ctx.Err(), context.Cause(it.ctx))
	}
	r, o := it.req, outcome{it: it, ended: now, skipped: true}
	if r != nil && r.sent {
		it.attempts++
		it.maybe = true
		it.last = &tidegate.Error{
			Op: "SendMessage", Subject: t.name, Endpoint: r.lane.Endpoint, MaybeStored: true,
			Message: "the response was not awaited", Err: cause,
		}
		o.err, o.skipped, o.in = it.last, false, it.inputs(now, t.good.Load())
		o.in.ofError(o.err)
		o.in.Closed = aborted
		o.decision = Decide(o.in)
	}
	it.aborted = aborted
	if aborted {
		t.end(it, it.fail(StopClosed, cause), now)
		if t.asked != nil {
			t.asked.attempt.cancel()
		}
	} else {
		t.end(it, it.fail(StopContext, cause), now)
	}
	t.pump(nil)
	t.mu.Unlock()
	if !o.skipped {
		t.observe(r, &o, r.began)
	}
	t.p.complete([]*item{it})
}
