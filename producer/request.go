package producer

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/guard"
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

// crowd is the maximum of calls under way at which a topic begins a second one. With more calls,
// the topic has one call at a time, if its server takes several messages in a request.
const crowd = 16

// A roundTrip is the call of the transport for a request.
type roundTrip struct {
	scope   scope     // without a ctx while the request waits for the limiter
	sent    bool      // the call has begun, and its results are not counted yet
	began   time.Time // start of the call
	decides bool      // it has set Lane.Deciding

	items    []*item             // of the call
	messages []*tidegate.Message // of items, for the transport
	copies   *copySet            // their memory; nil if they are the items' messages

	ride   *ride   // with the requests of other topics; nil for a call of its own
	left   bool    // ride knows that no message of it is wanted
	server *server // of a call of its own on a lane with Topics; nil otherwise
	number int     // of the call at server

	oneItem    [1]*item // saves an allocation
	oneMessage [1]*tidegate.Message
	oneOutcome [1]outcome
	oneEnded   [1]*item
}

// The plan of a topic.
type (
	queue     = plan.Queue[*item, roundTrip]
	queueItem = plan.Item[*item, roundTrip]
	lane      = plan.Lane[*item, roundTrip]
	ask       = plan.Ask[*item, roundTrip]
	request   = plan.Request[*item, roundTrip]
	job       = plan.Job[*item, roundTrip]
)

// cancel cancels the call of the transport, if there is one, unless other topics share it.
func (c *roundTrip) cancel() {
	if c.scope.cancel != nil {
		c.scope.cancel()
	}
	if c.ride != nil && !c.left {
		c.left = true
		c.ride.leave()
	}
}

// messagesOf returns the number of messages in the call of a request.
func messagesOf(r *request) int {
	if r.Call.ride != nil {
		return r.Call.ride.total
	}
	return len(r.Items)
}

// A scope is the ctx of an ask or request. A request with a single message continues with the scope
// of its ask, because both are one attempt.
type scope struct {
	ctx    context.Context //nolint:containedctx // lives as long as the job
	cancel context.CancelFunc
}

// route carries out an ask, and returns the request that can begin. If there is none, it returns
// the next job of the worker. An error of the transport is a failed attempt of all messages that
// waited for the ask, because none of them has a lane.
func (t *topic) route(a *ask) (r *request, next job, ok bool) {
	began := time.Now()
	err := t.lanesFor(t.lookup.ctx, a)
	now := time.Now()
	t.mu.Lock()
	lookup := t.lookup
	t.lookup = scope{}
	r = t.queue.Routed(a, now)
	var ended []*item
	var failed *request
	switch {
	case err != nil:
		failed = t.queue.Withdraw(a)
		failed.Call.began = began
		for _, planned := range failed.Items {
			failed.Call.items = append(failed.Call.items, planned.Of)
		}
	case r == nil && a.Own:
		r = t.alone(a.Head, now)
	}
	switch {
	case err != nil:
	case r == nil:
		ended = t.hopeless(now, a.Head.Of)
	case len(r.Items) == 1 && r.Items[0] == a.Head:
		r.Call.scope, lookup.cancel = lookup, nil
	}
	if r != nil && t.p.opts.Limiter == nil {
		t.start(r, now)
	}
	worker := r == nil && !a.Own
	if failed == nil {
		next, ok = t.pump(now, nil, worker)
	}
	t.mu.Unlock()
	if lookup.cancel != nil {
		lookup.cancel()
	}
	if len(ended) > 0 {
		t.p.complete(ended)
	}
	if failed != nil {
		ended, next, ok = t.settle(failed, nil, err, worker)
		t.p.wakeCallers(ended)
	}
	return r, next, ok
}

// lanesFor requests the lanes of a from the transport, until the time of its first message's
// attempt is over. It returns the error for the first lane that is missing. The end of the caller's
// ctx and Close are not errors of the transport.
func (t *topic) lanesFor(ctx context.Context, a *ask) (err error) {
	returned := false
	defer func() {
		if !returned {
			t.abandon(a, nil)
		}
	}()
	for r := range a.Requests {
		var l transport.Lane
		if l, err = t.p.lanes.Lane(ctx, r); err != nil {
			if a.Own && a.Head.Of.ctx.Err() != nil || t.p.closed.Load() {
				err = nil
			}
			break
		}
		a.Lanes = append(a.Lanes, l)
	}
	returned = true
	return err
}

// send carries out a request. It returns a result for each of Call.items, or an error for all.
func (t *topic) send(r *request) (results []transport.SendResult, err error) {
	returned := false
	defer func() {
		if !returned {
			t.abandon(nil, r)
		}
	}()
	if l := t.p.opts.Limiter; l != nil {
		t.limit(l, r, false)
		t.mu.Lock()
		t.start(r, time.Now())
		t.mu.Unlock()
	}
	c := &r.Call
	if len(c.items) > 0 {
		t.p.calls.Add(1)
		defer t.p.calls.Add(-1)
		results = t.p.lanes.SendLane(c.scope.ctx, r.Info, c.messages)
	}
	returned = true
	c.scope.cancel()
	c.copies.Free()
	return results, resultsError(t.name, len(results), len(c.items))
}

// resultsError returns the error of a call if the transport has returned another number of results
// than it got messages.
func resultsError(topic string, results, messages int) error {
	if results == messages {
		return nil
	}
	return &tidegate.Error{
		Op: "SendMessage", Subject: topic, MaybeStored: true,
		Message: fmt.Sprintf("the transport returned %d results for %d messages", results, messages),
	}
}

// abandon ends an ask or a request whose goroutine the transport or the limiter has ended: by a
// panic that the caller of Send may recover from, or by runtime.Goexit. The messages in it fail.
// The others continue.
func (t *topic) abandon(a *ask, r *request) {
	now := time.Now()
	err := &tidegate.Error{Op: "SendMessage", Subject: t.name, MaybeStored: r != nil, Message: "the transport panicked, or ended its goroutine"}
	t.mu.Lock()
	var ended []*item
	fail := func(it *item, began time.Time) {
		if it.state != pending {
			return
		}
		it.record(err, began, now)
		if t.end(it, it.fail(StopPermanent, nil), now) {
			ended = append(ended, it)
		}
	}
	if a != nil {
		t.lookup.cancel()
		a.Lanes = nil
		t.queue.Routed(a, now)
		fail(a.Head.Of, now)
	} else {
		r.Call.sent = false
		r.Call.cancel()
		for _, planned := range r.Items {
			fail(planned.Of, r.Call.began)
		}
		t.queue.Finished(r, now)
		r.Call.end(nil, now)
	}
	t.pump(now, nil, false)
	t.mu.Unlock()
	t.p.complete(ended)
}

// start creates the ctx of a request, and the list of its messages that are still pending. From
// then on a message that ends may have been stored. The lock is held.
func (t *topic) start(r *request, now time.Time) {
	c := &r.Call
	shortest, await := time.Duration(math.MaxInt64), false
	c.items, c.messages = c.oneItem[:0], c.oneMessage[:0]
	if r.Alive > 1 {
		c.items, c.messages = make([]*item, 0, r.Alive), make([]*tidegate.Message, 0, r.Alive)
	}
	for _, planned := range r.Items {
		it := planned.Of
		if it.state != pending {
			continue
		}
		shortest = min(shortest, it.Share(now))
		await = await || it.history.Attempts > 0
		c.items, c.messages = append(c.items, it), append(c.messages, it.Message)
	}
	switch c.sent, c.began = len(c.items) > 0, now; {
	case c.ride != nil:
		c.ride.add(c.items, c.messages, shortest, await)
		return
	case c.scope.ctx != nil:
	case len(c.items) == 1:
		c.scope = newScope(c.items[0].ctx, r.Own, await, shortest)
	default:
		// The request serves several callers. It ends when all of them have left.
		c.scope = newScope(context.Background(), true, await, shortest)
	}
	if !r.Own { // the callers may leave before the end of the request
		c.copies = copyPool.Get().(*copySet)
		c.copies.add(c.messages)
		c.messages = c.copies.Messages
	}
}

// limit waits for the limiter's permission for each message of the request. It waits for the first
// message as long as that message can. A further message joins if it is permitted within
// limitPatience, and otherwise returns to the queue. Without that bound, a request with many
// messages would reach the server as one burst. joined is set if an earlier request of the same
// call has a permitted message; limit returns it for the next one.
func (t *topic) limit(l ratelimit.Limiter, r *request, joined bool) bool {
	if cancel := r.Call.scope.cancel; cancel != nil { // the attempt's time begins after the wait
		cancel()
	}
	patience := time.Now().Add(limitPatience)
	for i, planned := range r.Items {
		it := planned.Of
		t.mu.Lock()
		gone := it.state != pending
		skip := gone || it.history.Attempts > 0 && t.p.observer != nil
		ctx, cancel := context.WithCancel(it.ctx)
		if joined {
			ctx, cancel = context.WithDeadline(it.ctx, patience)
		}
		r.Call.scope.cancel, r.Call.scope.ctx = cancel, nil // Close ends the wait
		t.mu.Unlock()
		if skip {
			cancel()
			joined = joined || !gone // a retry needs no permission; the next message must not overtake it
			continue
		}
		err := guard.Wait(ctx, "Options.Limiter", t.p.reportPanic, func() error { return ratelimit.Wait(ctx, l, 1) })
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
			t.pump(now, nil, false) // another lane may be free
			t.mu.Unlock()
			return true
		}
		if it.state == pending {
			e := it.fail(StopLimiter, fmt.Errorf("limiter: %w", err))
			if it.ctx.Err() != nil {
				e = it.contextEnded()
			}
			stop = t.spools(it, e)
			if stop { // its message group has to follow it
				t.queue.Shorten(r, i+1, now)
			}
			if t.end(it, e, now) {
				ended = append(ended, it)
			}
			if stop && it.Message.OrderKey() != "" {
				t.spoolGroup(it.Message.OrderKey(), nil, nil, now)
			}
			t.pump(now, nil, false)
		}
		t.mu.Unlock()
		t.p.complete(ended)
		if stop {
			return joined
		}
	}
	return joined
}

const (
	maxBytes    = 2 << 20 // bodies in the memory of a Set that is used again
	maxMessages = 1024    // likewise
)

// A copySet has copies of the messages of one request. The zero value is empty.
type copySet struct {
	Messages []*tidegate.Message // the copies

	structs []tidegate.Message
	bodies  []byte
}

var copyPool = sync.Pool{New: func() any { return new(copySet) }}

// add adds copies of messages, in order.
func (s *copySet) add(messages []*tidegate.Message) {
	size := 0
	for _, m := range messages {
		size += len(m.Body)
	}
	s.structs = slices.Grow(s.structs, len(messages)) // earlier copies keep their memory
	s.Messages = slices.Grow(s.Messages, len(messages))
	s.bodies = slices.Grow(s.bodies, size)
	for _, m := range messages {
		c := *m
		c.Keys, c.Properties = slices.Clone(m.Keys), maps.Clone(m.Properties)
		at := len(s.bodies)
		s.bodies = append(s.bodies, m.Body...)
		c.Body = s.bodies[at:len(s.bodies):len(s.bodies)]
		s.structs = append(s.structs, c)
		s.Messages = append(s.Messages, &s.structs[len(s.structs)-1])
	}
}

// Free gives the memory back. The copies are not used afterwards. A nil Set has none.
func (s *copySet) Free() {
	if s == nil {
		return
	}
	clear(s.structs)
	clear(s.Messages)
	s.structs, s.Messages, s.bodies = s.structs[:0], s.Messages[:0], s.bodies[:0]
	if cap(s.bodies) <= maxBytes && cap(s.structs) <= maxMessages && cap(s.Messages) <= maxMessages {
		copyPool.Put(s)
	}
}

// A single makes a LaneSender of a Sender: it has one lane, with one message in a request.
type single struct{ transport.Sender }

func (single) Lane(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
	return transport.Lane{MaxMessages: 1}, nil
}

func (s single) SendLane(ctx context.Context, _ transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	return s.Send(ctx, msgs)
}
