package producer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/producer/internal/retry"
	"github.com/tidegate/tidegate/transport"
)

// A Send that is throttled once passes through these functions:
//
//	Send       prepare, admit, submit: Queue.Add, pump: Queue.Next has an ask
//	  work     route: lanesFor, Queue.Routed has a request; start; send: throttled
//	    settle charge; decide: awaitedSettings sends a request, retry.Decide has a delay;
//	           finish: apply notes it, adapt pauses the lane, Queue.Finished queues the item,
//	           pump sets a timer
//	  await    until the end
//	wake       pump: Queue.Next has an ask; a worker begins
//	  work     route, start, send: accepted
//	    settle charge; finish: apply calls end, conclude counts; wakeCallers
//
// The first attempt takes the lock of the topic three times if it succeeds.
//
// If the server takes messages of several topics in a request (transport.Lane.Topics), Queue.Routed
// has none. Then alone makes the first request, unless other messages wait for the server, and
// server.work makes the later ones (server.go).

// A topic is the producer's state of one topic: its queue, and the known state of the
// server.
//
// Its lock guards the queue and the state of the items in it. The locks acquired under it are the
// ledger's, the functions', the spooler's, a server's, the producer's and, in Holds, the spool's;
// none of them is held while another lock is acquired. It is never held during a call of the
// transport or of the user's functions.
type topic struct {
	p     *Producer
	name  string
	users atomic.Int64 // the producer keeps the topic while this is not 0

	good       atomic.Bool            // the server accepted a send to the topic
	answer     atomic.Pointer[answer] // the last response with settings; nil before the first
	requesting chan struct{}          // holds a token while a goroutine requests the settings

	mu       sync.Mutex
	spooling map[string]int // message groups with messages that wait for a write to the spool
	permits  []string       // endpoints that accepted a send to the topic; with a spool only
	down     bool           // the last messages with a result went to the spool after failed attempts

	queue  queue
	lookup scope // of the ask under way: pump sets it, and only the goroutine of the ask uses its ctx
	alarm  alarm // for the next event of the queue

	turn   plan.Turn[*topic] // at server; its fields are the server's
	at     *server           // where the topic has its turn; nil if it has none
	server *server           // of the last turn

	watches watchSet[*item] // of the messages of SendAsync
}

// submit queues messages. If own is one of them and can be sent at once, submit returns the ask or
// the request for it, which the caller has to carry out by work.
func (t *topic) submit(own *queueItem, items ...*item) (job, bool) {
	var begun *watch[*item]
	now := time.Now()
	t.mu.Lock()
	for _, it := range items {
		switch {
		case it.state != pending: // Close has aborted it
		case t.p.spooler != nil && t.diverts(it):
			t.spool(it, it.fail(StopSpool, nil))
		default:
			t.queue.Add(&it.Item, now)
			if it.done != nil { // items has no other one then
				begun = t.watches.Join(it.ctx, it, &it.watched)
			}
		}
	}
	ended := t.hopeless(now, items...)
	j, ok := t.pump(now, own, false)
	t.mu.Unlock()
	if begun != nil {
		begun.Start()
	}
	if len(ended) > 0 {
		t.p.complete(ended)
	}
	return j, ok
}

// pump begins the jobs that are ready, and starts a goroutine for each. It returns one of them
// instead for the caller to carry out: the ask or the request for own alone or, if worker is true,
// the first. Then the topic takes its turn at the server that sends its other messages. It begins
// none while Close aborts the messages. A message whose caller waits does not wait for the
// request of others in a crowd. The lock is held.
func (t *topic) pump(now time.Time, own *queueItem, worker bool) (mine job, ok bool) {
	t.queue.Crowded = own == nil && t.p.calls.Load() > crowd
	for !t.p.closed.Load() {
		j, more := t.queue.Next(now, own)
		if !more {
			break
		}
		switch {
		case j.Ask != nil:
			head := j.Ask.Head.Of
			t.lookup = newScope(head.ctx, j.Ask.Own, head.history.Attempts > 0, head.Share(now))
		case t.p.opts.Limiter == nil: // otherwise send starts it when the limiter has permitted it
			t.start(j.Request, now)
		}
		if !ok && (worker || j.Ask != nil && j.Ask.Own) {
			mine, ok = j, true
			continue
		}
		t.p.ledger.Running.Go(func() { t.work(j) }) // a message is pending, so Close does not wait for Running yet
	}
	if own != nil && !ok {
		if r := t.alone(own, now); r != nil {
			mine, ok = job{Request: r}, true
			if t.p.opts.Limiter == nil {
				t.start(r, now)
			}
		}
	}
	if own == nil || !ok { // otherwise the own ask is for the first message of the topic
		t.takeTurn(now)
	}
	t.schedule(now)
	return mine, ok
}

// schedule sets the alarm for the next event of the queue. The lock is held.
func (t *topic) schedule(now time.Time) {
	at := t.queue.WakeAt(now)
	if t.p.closed.Load() { // the messages are about to leave
		at = time.Time{}
	}
	t.alarm.set(at, now, t)
}

func (t *topic) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.alarm.at = time.Time{}
	t.pump(time.Now(), nil, false)
}

// An alarm calls the method wake of its owner at a time. The zero value is not set.
type alarm struct {
	timer *time.Timer // nil before its first use
	at    time.Time   // zero if it is stopped
}

// set sets the time; zero stops the alarm.
func (a *alarm) set(at, now time.Time, owner interface{ wake() }) {
	switch {
	case at.Equal(a.at):
		return
	case at.IsZero():
		a.timer.Stop()
	case a.timer == nil:
		a.timer = time.AfterFunc(at.Sub(now), owner.wake)
	default:
		a.timer.Reset(at.Sub(now))
	}
	a.at = at
}

// work carries out a job and those that are ready after it. It returns true if its last request
// ended a message. Each lane has one worker for each of its requests.
//
// The first attempt of a Send runs on the goroutine of its caller, further ones have a worker. The
// caller's goroutine saves two switches between goroutines and four of 232 allocations of a message
// (BenchmarkSendSDK with one caller).
func (t *topic) work(j job) (over bool) {
	for ok := true; ok; {
		r := j.Request
		if j.Ask != nil {
			r, j, ok = t.route(j.Ask)
		}
		if r == nil {
			continue
		}
		results, err := t.send(r)
		var ended []*item
		ended, j, ok = t.settle(r, results, err, !r.Own)
		over = len(ended) > 0
		if ok && len(ended) > 1 {
			// The next request does not wait for the wake-ups. It needs more stack than they do,
			// and this goroutine has it already.
			t.p.ledger.Running.Go(func() { t.p.wakeCallers(ended) })
		} else {
			t.p.wakeCallers(ended)
		}
	}
	return over
}

// newScope returns the scope of an attempt, which begins with the ask for its lane or, if it shares
// a request, with the request. The scope ends after share, which is item.Share. On the caller's own
// goroutine it ends with the caller's ctx too. Otherwise it does not, because the message itself
// watches the end of that ctx. With await the transport waits for a connection.
func newScope(ctx context.Context, own, await bool, share time.Duration) (s scope) {
	if !own {
		ctx = context.WithoutCancel(ctx) // keeps the values
	}
	if await {
		ctx = transport.AwaitConnection(ctx)
	}
	s.ctx, s.cancel = context.WithTimeoutCause(ctx, share, errAttemptTimeout)
	return s
}

// A Transport is the part of a transport that a producer uses. If it is also a
// [transport.LaneSender], messages share requests where the server supports that.
type Transport interface {
	transport.Sender

	// ProducerSettings is the method of transport.Configurer.
	ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error)
}

// A Producer sends messages. Several goroutines may share it, and one is enough
// for a program. Create one with [New]; the zero value must not be used.
type Producer struct {
	transport Transport
	lanes     transport.LaneSender
	opts      Options
	log       *slog.Logger
	events    *tally.Log     // bounds the lines about events of sends
	observer  observer       // of Options.Limiter; nil if it has none
	backoff   backoff.Policy // Options.Backoff if it is the program's own type, guarded
	assumed   Settings       // in effect until the server has responded
	bounds    *retry.Bounds  // of all sends

	serversMu sync.Mutex // acquired under a topic's lock
	servers   map[string]*server

	ledger    *ledger[*item]
	functions *functions[*item] // of SendAsync
	spooler   *spooler          // nil without Options.Spool
	calls     atomic.Int64      // of SendLane under way, over all topics
	closed    atomic.Bool
	life      context.Context //nolint:containedctx // for settings requests that no call waits for; Close ends it
	end       context.CancelCauseFunc

	mu     sync.RWMutex
	topics map[string]*topic // guarded by mu
}

// An observer is a limiter that learns from results, as ratelimit.Adaptive does.
type observer interface{ Observe(err error) }

// maxTopics bounds the remembered topics without pending messages.
const maxTopics = 1000

// New returns a producer that sends through t. t must stay open until the producer is closed. New
// does not connect. With Options.Spool it starts a goroutine, which sends the messages of the
// spool, also those of an earlier process, until Shutdown or Close. Without a spool it starts none.
// The error joins all invalid fields of opts and matches tidegate.ErrInvalid.
func New(t Transport, opts Options) (*Producer, error) {
	if t == nil {
		return nil, fmt.Errorf("producer: %w", &tidegate.Error{
			Subject: "transport", Code: tidegate.CodeBadRequest, Message: "it is nil; give the transport to send through",
		})
	}
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	opts = opts.withDefaults()
	p := &Producer{
		transport: t,
		opts:      opts,
		log:       opts.Logger,
		assumed:   merge(opts, transport.ProducerSettings{}),
		bounds:    opts.bounds(),
		topics:    make(map[string]*topic),
		servers:   make(map[string]*server),
	}
	p.life, p.end = context.WithCancelCause(context.Background()) // independent of the calls
	p.lanes, _ = t.(transport.LaneSender)
	if p.lanes == nil {
		p.lanes = single{t}
	}
	p.ledger = newLedger[*item](opts.MaxPending, opts.MaxPendingBytes)
	p.functions = newFunctions(p.ledger, entryOf, p.call)
	p.observer, _ = opts.Limiter.(observer)
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.events = tally.New(p.log)
	p.bounds.Pacing = guard.Policy("Options.Pacing", opts.Pacing, p.reportPanic)
	switch opts.Backoff.(type) {
	case nil, backoff.Exponential, backoff.Steps: // they do not panic
	default:
		p.backoff = guard.Policy("Options.Backoff", opts.Backoff, p.reportPanic)
	}
	if opts.Spool != nil {
		p.spooler = newSpooler(p)
		p.spooler.startDrain()
	}
	return p, nil
}

// limits returns the limits of a send.
func (p *Producer) limits(s Settings) retry.Limits {
	b := s.Backoff
	if p.backoff != nil {
		b = p.backoff
	}
	return retry.Limits{Bounds: p.bounds, MaxAttempts: s.MaxAttempts, Backoff: b}
}

// use returns the state of a topic. The producer keeps it until release.
func (p *Producer) use(name string) *topic {
	p.mu.RLock()
	t := p.topics[name]
	if t != nil {
		t.users.Add(1)
	}
	p.mu.RUnlock()
	if t != nil {
		return t
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t = p.topics[name]; t == nil {
		if len(p.topics) >= maxTopics {
			for other, idle := range p.topics { // the first idle ones, in random order
				if idle.users.Load() == 0 {
					delete(p.topics, other)
					break
				}
			}
		}
		t = &topic{p: p, name: name, requesting: make(chan struct{}, 1)}
		t.turn.Of = t
		t.watches = newSet(&t.mu, func(items []*item) { leaveAll(items, false) })
		p.topics[name] = t
	}
	t.users.Add(1)
	return t
}

func (t *topic) release() { t.users.Add(-1) }

// prepare validates a message and returns an item of it with an ID.
func (p *Producer) prepare(ctx context.Context, msg *tidegate.Message, done func(tidegate.Receipt, error)) (*item, *SendError) {
	if msg == nil {
		return nil, errNilMessage
	}
	it := newItem(ctx, msg)
	it.done = done
	if p.closed.Load() {
		return nil, it.fail(StopClosed, errProducerClosed)
	}
	if err := tidegate.ValidateTopic(msg.Topic); err != nil {
		return nil, it.fail(StopInvalid, err) // before the topic is remembered
	}
	it.topic = p.use(msg.Topic)
	settings := p.settings(it.topic)
	largest := settings.MaxBodySize
	if len(msg.Body) > largest && settings.MaxBodySizeFrom != fromClient {
		// The server may accept a larger body than the known limit.
		var err error
		settings, err = p.awaitedSettings(ctx, it.topic)
		if largest = settings.MaxBodySize; err != nil {
			largest = math.MaxInt // the server decides at the attempt, if ctx has not ended
		}
	}
	it.limits = p.limits(settings)
	if err := msg.Validate(largest); err != nil {
		it.topic.release()
		return nil, it.fail(StopInvalid, err)
	}
	it.SetMessage(msg)
	return it, nil
}

var errNilMessage = &SendError{Reason: StopInvalid, Cause: &tidegate.Error{
	Subject: "message", Code: tidegate.CodeBadRequest, Message: "it is nil; give a message",
}}

// admit lets a message in, and waits for a place if the producer is full. The producer owns the
// message until its end. A message without a message group may go to the spool if the producer is
// full. One with a group may not, because older messages of the group may be in the producer.
func (p *Producer) admit(it *item, blocked func()) (err *SendError) {
	when := fullWait
	switch {
	case p.opts.WhenFull == RejectWhenFull:
		when = fullReject
	case p.opts.WhenFull == SpoolWhenFull && it.Message.OrderKey() == "":
		when = fullSpool
		it.wake = make(chan struct{}) // before Enter, because Close can end the message from then on
	}
	var place *entrant[*item]
	admission, full := placeEnded, error(nil)
	if it.ctx.Err() == nil {
		place, admission, full = p.ledger.Enter(it.ctx, it, &it.entry, it.Size, when)
	}
	if place != nil {
		if blocked != nil {
			blocked()
		}
		admission = p.ledger.Await(it.ctx, place)
	}
	switch admission {
	case placeAdmitted, placeForced:
		it.full = admission == placeForced
		if p.opts.Budget != nil {
			p.opts.Budget.Earn(1)
		}
		return nil
	case placeClosed:
		err = it.fail(StopClosed, errProducerClosed)
	case placeFull:
		err = it.fail(StopFull, fmt.Errorf("%w: %w", ErrFull, full))
	case placeEnded:
		err = it.contextEnded()
	}
	it.topic.release()
	return err
}

// resultOf returns the ledger's class of an item with a result. It also reports whether the item
// has a function of SendAsync.
func resultOf(it *item) (e *entry[*item], r leaveResult, called bool) {
	results := [...]leaveResult{delivered: leftDelivered, spooled: leftSpooled, failed: leftFailed, aborted: leftAborted}
	switch r = results[it.state]; {
	case it.origin == fromSpool && it.state == delivered:
		r = leftDrained
	case it.origin == fromSpool:
		r = leftInSpool
	}
	return &it.entry, r, it.done != nil
}

// complete finishes messages that have ended. No lock is held.
func (p *Producer) complete(items []*item) {
	p.conclude(items)
	p.wakeCallers(items)
}

// conclude counts the results of messages and queues the functions of SendAsync. The lock of their
// topic may be held. Calling it before the next message of a group can be sent keeps the functions
// of stored messages in order.
func (p *Producer) conclude(items []*item) {
	if len(items) == 0 {
		return
	}
	p.ledger.Leave(items, resultOf)
	for _, it := range items {
		if it.done != nil {
			p.functions.Add(it)
		}
	}
}

// wakeCallers frees the resources of finished messages and wakes their callers. No lock is held.
func (p *Producer) wakeCallers(items []*item) {
	for _, it := range items {
		it.topic.release()
		if it.unwatch != nil {
			it.unwatch()
		}
		if it.wake != nil {
			close(it.wake)
		}
	}
}

// Accounts count the messages that a producer has accepted since New. When all messages have a
// result, as after Shutdown and Close, Accepted is the sum of Delivered, Failed, Spooled and the
// length of Undelivered.
type Accounts struct {
	Accepted  int // by Send, SendAsync, SendBatch, Begin and Transact
	Delivered int // accepted by the server; for a half message, stored as such
	Failed    int // ended with an error, without those in Undelivered
	Spooled   int // on disk in Options.Spool when their callers received the result
	Drained   int // spooled messages that the server accepted, including those of an earlier process

	// Undelivered are the messages that Shutdown or Close aborted and that are not in a spool, in
	// no particular order. Their callers received an error that matches tidegate.ErrClosed.
	Undelivered []Undelivered
}

// An Undelivered is a message that Shutdown or Close aborted.
type Undelivered struct {
	Message     *tidegate.Message // with the ID in its attempts
	MaybeStored bool              // an attempt may have been stored
}

// Flush waits until every message that was accepted before the call has its result and the
// functions given to SendAsync have returned. It returns context.Cause(ctx) if ctx ends first.
// Other goroutines may send during Flush. A function given to SendAsync that calls Flush waits for
// itself, until ctx ends.
func (p *Producer) Flush(ctx context.Context) error { return p.ledger.Flush(ctx) }

// Shutdown stops the producer: it rejects further messages, waits until the accepted ones have
// their results, and returns the accounts. If ctx ends first, Shutdown aborts the remaining
// messages, lists them in Accounts.Undelivered, and returns context.Cause(ctx) too. With
// Options.Spool it moves them to the spool instead. Shutdown does not wait for a transport that
// ignores the cancellation of its request; Close does.
//
// Shutdown also waits for the calls of Transact, Begin, Commit, Rollback and Recall that are under
// way, until ctx ends. It does not wait for a [Transaction] of Begin without a resolution, and
// later resolutions fail with tidegate.ErrClosed: use Transact, or resolve it before.
//
// With Options.Spool Shutdown also stops the sending of spooled messages. It waits for requests
// under way until ctx ends, for at most a second, and then cancels them; their messages stay in the
// spool. The producer does not use the spool after Shutdown has returned.
//
// Shutdown can be called in any state, more than once, and by several goroutines. It must not be
// called from Options.OnAttempt or a function given to SendAsync or Transact, because it waits for
// these: such a call blocks until ctx ends.
func (p *Producer) Shutdown(ctx context.Context) (Accounts, error) {
	p.ledger.Close()
	err := p.ledger.Flush(ctx)
	if err == nil {
		err = p.ledger.AwaitCalls(ctx)
	}
	drained := true
	if p.spooler != nil {
		p.spooler.stop()
		drained = err == nil && p.spooler.wait(ctx)
	}
	if err != nil || !drained {
		p.abort("Shutdown")
		<-p.ledger.Settled() // other goroutines may still be storing results
	}
	if p.spooler != nil {
		<-p.spooler.drained
	}
	p.closed.Store(true)
	p.end(errProducerClosed)
	p.events.Close()
	return p.accounts(), err
}

// accounts returns the current accounts.
func (p *Producer) accounts() Accounts {
	c, aborted := p.ledger.Report()
	a := Accounts{Accepted: c.Accepted, Delivered: c.Delivered, Failed: c.Failed, Spooled: c.Spooled, Drained: c.Drained}
	for _, it := range aborted {
		a.Undelivered = append(a.Undelivered, Undelivered{Message: it.Message, MaybeStored: it.err.MaybeStored})
	}
	return a
}

// Close stops the producer at once: it aborts the messages without a result with an error that
// matches tidegate.ErrClosed, or moves them to Options.Spool. It calls the functions given to
// SendAsync and waits until all goroutines of the producer have ended. It logs the number of
// aborted messages. Use Shutdown to have them sent, or to receive them.
//
// Close can be called in any state, more than once, and by several goroutines. It must not be
// called from Options.OnAttempt or a function given to SendAsync, because Close waits for these. It
// always returns nil, and leaves the transport open.
func (p *Producer) Close() error {
	p.ledger.Close()
	if p.spooler != nil {
		p.spooler.stop()
	}
	p.abort("Close")
	p.ledger.Running.Wait()
	if p.spooler != nil {
		<-p.spooler.drained
	}
	p.events.Close()
	return nil
}

// abort ends all messages without a result.
func (p *Producer) abort(op string) {
	p.ledger.Stop()
	p.closed.Store(true)
	p.end(errProducerClosed)
	if n := leaveAll(p.ledger.Pending(), true); n > 0 {
		p.log.Warn("messages aborted", "operation", op, "messages", n, "spool", p.spooler != nil)
	}
}

// end ends a pending message with an error, or without one if the server accepted it. If end
// returns true, the caller has to call complete for the message afterwards. Otherwise the message
// moves to the spool. The lock is held.
func (t *topic) end(it *item, err *SendError, now time.Time) (ended bool) {
	spools := err != nil && t.spools(it, err) // before the message leaves its request
	if it.state, it.err = delivered, err; err != nil {
		it.state = failedState(err)
	}
	if it.done != nil {
		it.unwatch = it.watched.Leave()
	}
	if r := t.queue.Remove(&it.Item, now); r != nil {
		r.Call.cancel()
	}
	if spools {
		t.spool(it, err)
	}
	return !spools
}

// endWithGroup is end for a message without a result of the transport. If it moves to the spool,
// the messages of its message group follow it, in their order: those in its request, and the queued
// ones. The lock is held.
func (t *topic) endWithGroup(it *item, err *SendError, now time.Time) (ended bool) {
	group := it.Message.OrderKey()
	if group == "" || !t.spools(it, err) {
		return t.end(it, err, now)
	}
	if r := it.Request(); r != nil {
		for other := range t.inRequest(group) {
			if other == it {
				t.end(it, err, now)
				continue
			}
			other.history.Maybe = other.history.Maybe || r.Call.sent
			t.end(other, other.fail(StopSpool, errBehind), now)
		}
	}
	t.spoolGroup(group, it, err, now)
	return false
}

// spoolGroup moves the queued messages of a message group to the spool, in their order, because a
// message of the group moves there: this one, with its error, or one that was in a request. The
// lock is held.
func (t *topic) spoolGroup(group string, this *item, err *SendError, now time.Time) {
	for _, queued := range t.queue.Group(group) {
		switch it := queued.Of; {
		case it == this:
			t.end(it, err, now)
		case it.origin != fromSpool:
			t.end(it, it.fail(StopSpool, errBehind), now)
		}
	}
}

// inRequest yields the messages of a message group that are in a request and have no result, in
// their order. Each may end while it is yielded. The lock is held.
func (t *topic) inRequest(group string) iter.Seq[*item] {
	return func(yield func(*item) bool) {
		r := t.queue.RequestOf(group)
		if r == nil {
			return
		}
		for _, planned := range r.Items {
			it := planned.Of
			if it.state == pending && it.Message.OrderKey() == group && !yield(it) {
				return
			}
		}
	}
}

// lateBefore returns a message that has to leave before this one, or nil: with a spool, an older
// message of the same message group that is in a request and whose ctx has ended. Callers often
// give the messages of a group the same deadline, and their goroutines wake in any order. The lock
// is held.
func (t *topic) lateBefore(it *item, now time.Time) *item {
	if t.p.spooler == nil || it.Message.OrderKey() == "" || it.Request() != nil {
		return nil
	}
	for older := range t.inRequest(it.Message.OrderKey()) {
		if older.ended(now) != nil {
			return older
		}
	}
	return nil
}

// spools reports whether a message that ends with err moves to the spool: it may succeed later, and
// its caller has not cancelled it. A message at its deadline moves there, unless it waits behind an
// older message of its group that is in a request: a server may accept the older one in a moment,
// so that one cannot move. The lock is held.
func (t *topic) spools(it *item, err *SendError) bool {
	if t.p.spooler == nil || it.origin == fromSpool || it.origin == halfMessage {
		return false
	}
	switch err.Reason {
	case StopExhausted, StopThrottled, StopPushedBack, StopDeadline, StopLimiter, StopBudget, StopClosed, StopSpool:
		return true
	case StopContext:
		if it.Message.OrderKey() != "" && it.Request() == nil {
			for range t.inRequest(it.Message.OrderKey()) {
				return false
			}
		}
		err := it.ctx.Err() // nil if the timer of the ctx is late
		return err == nil || errors.Is(err, context.DeadlineExceeded)
	default:
		return false
	}
}

// hopeless ends the messages that wait for the pause of a lane which leaves no time before their
// deadline. A message that waits for its own delay is none of them. The lock is held.
func (t *topic) hopeless(now time.Time, items ...*item) (ended []*item) {
	for _, it := range items {
		if it.state != pending || !it.Queued() {
			continue
		}
		l := t.queue.PauseOf(&it.Item, now)
		if l == nil {
			continue
		}
		needed := retry.Sum(l.PausedUntil.Sub(now), it.limits.Floor)
		deadline, ok := it.ctx.Deadline()
		left := deadline.Sub(now)
		if ok && left < needed && t.endWithGroup(it, it.tooLate(needed, left, l.Throttle), now) {
			ended = append(ended, it)
		}
	}
	return ended
}

// leaveAll is leave for several messages. If OnAttempt ends the goroutine, another one continues.
// leaveAll returns the number of messages that it ended, without those of the spool.
func leaveAll(items []*item, aborted bool) (left int) {
	i := 0
	defer func() {
		if i < len(items) {
			go leaveAll(items[i:], aborted)
		}
	}()
	for i < len(items) {
		it := items[i]
		i++
		if it.topic.leave(it, aborted) && it.origin != fromSpool {
			left++
		}
	}
	return left
}

// leave ends a message whose ctx ended or that Close aborts. If the message is in a request under
// way, that request counts as an attempt, and the message does not wait for its response. leave
// returns false if the message had ended before.
func (t *topic) leave(it *item, aborted bool) (left bool) {
	t.mu.Lock()
	now := time.Now()
	for !aborted && it.state == pending {
		older := t.lateBefore(it, now)
		if older == nil {
			break
		}
		t.mu.Unlock()
		t.leave(older, false)
		t.mu.Lock()
		now = time.Now()
	}
	if it.state != pending {
		t.mu.Unlock()
		return false
	}
	cause := errProducerClosed
	if !aborted {
		cause = it.ended(now)
	}
	o := outcome{it: it, ended: now, skipped: true}
	r := it.Request()
	if r != nil && r.Call.sent {
		o.skipped = false
		o.err = &tidegate.Error{
			Op: "SendMessage", Subject: t.name, Endpoint: r.Lane.Endpoint, MaybeStored: true,
			Message: "the call ended before the response", Err: cause,
		}
		o.in = it.record(o.err, r.Call.began, now)
		o.in.Closed = aborted
		o.decision = retry.Decide(o.in)
	}
	var ended bool
	if aborted {
		ended = t.end(it, it.fail(StopClosed, cause), now)
		if t.lookup.cancel != nil {
			t.lookup.cancel()
		}
	} else {
		ended = t.endWithGroup(it, it.fail(StopContext, cause), now)
	}
	t.pump(now, nil, false)
	t.mu.Unlock()
	if ended {
		defer t.p.complete([]*item{it}) // also if OnAttempt ends this goroutine
	}
	if !o.skipped {
		t.observe(messagesOf(r), &o, r.Call.began)
	}
	return true
}

// entryOf returns the ledger's record of an item.
func entryOf(it *item) *entry[*item] { return &it.entry }

// call calls the function that SendAsync was given for an item.
func (p *Producer) call(it *item) {
	defer p.recovered("the function given to SendAsync panicked", it.Message.ID)
	if it.err != nil {
		it.done(tidegate.Receipt{}, it.err)
		return
	}
	it.done(it.receipt, nil)
}
