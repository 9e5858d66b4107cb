package consumer

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/flow"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

// hand has the deliveries of a run from their arrival to their settlement, and decides the next
// step of each. It calls neither the transport nor the program. Only take and reserve wait.
//
// Its lock is never held together with another one of this package.
//
// Wake-ups:
//   - a delivery in a line waits for removeSettled of the delivery before it;
//   - a resting one has an entry in leases for the time of its retry;
//   - a ready delivery is taken by an idle worker, which makeReady signals, by a new worker, which
//     hire counts, or by a worker whose handler returns; a change of the gate wakes all workers;
//   - a delivery without a handler or a settlement attempt under way has an entry in leases, or
//     waits for extended; maintainLeases sleeps until the first entry, the gate's Wake or the first
//     reminder, and kick wakes it for an earlier one;
//   - a receive that waits for credits gets them from offer, which runs after each arrival,
//     settlement, failed receive, replaced worker, change of the gate and removal of a queue;
//   - a queue with a watch reserves nothing. It waits for the report of the server, for the end of
//     its receive (poll.cancel), which a change of the gate, the removal of the queue and the stop
//     call, and for the time rewatch.
//
// Bound on steps: maintainLeases checks once for each kick and each due time. Each due entry starts
// an extension, which flow.Lease bounds, or a settlement attempt, which verdict.State bounds, or
// ends the lease. Each retry has at most two reminders. killswitch.Gate bounds its changes. A
// report causes one receive; after maxEmpty receives without a message they are minPoll apart.
type hand struct {
	opts   *PushOptions
	mu     sync.Mutex
	work   waker         // workers wait for deliveries; its lock is mu
	kicked chan struct{} // of capacity 1: wakes maintainLeases

	waits atomic.Int32 // receives that wait for credits, and so for acknowledgements

	credits   flow.Credits
	sources   int    // queues of all topics
	bids      []*bid // receives that wait for credits
	hurry     func() // sends the pending acknowledgements; called without mu
	lastGrant int    // the number of the last grant
	ready     flow.Lanes[*item]
	lines     flow.Lines[*item]
	leases    flow.Schedule[*item]
	armed     time.Time // next check by maintainLeases; zero before the first one
	renewals  flow.RenewTime

	unread    int // in a line or ready
	running   int
	stuck     int // replaced handlers
	workers   int
	idle      int // waiting workers
	gate      *killswitch.Gate
	excuses   killswitch.Excuses
	polls     map[*poll]struct{} // receives under way
	reminders flow.Reminders[*source]
	stopped   bool // release unread deliveries if that costs no attempt
	leaving   bool // release all unread deliveries
	closed    bool // no further arrivals
	empty     chan struct{}
	report    StopReport
}

func newHand(o *PushOptions) *hand {
	h := &hand{
		hurry: func() {}, opts: o, kicked: make(chan struct{}, 1), lines: flow.Lines[*item]{}, polls: map[*poll]struct{}{}, empty: make(chan struct{}),
		credits: flow.New(o.Concurrency, max(o.MaxBuffered, 0), o.MaxBytes),
		gate:    o.KillSwitch.gate(),
	}
	h.work = sync.NewCond(&h.mu)
	return h
}

// A waker is a [sync.Cond]; the model of hand counts the workers that it wakes.
type waker interface {
	Wait()
	Signal()
	Broadcast()
}

// An arrival is a response to a receive.
type arrival struct {
	list      []*tidegate.Delivery
	caps      func(endpoint string) transport.Capabilities
	source    *source
	grant     flow.Grant
	more      bool          // it is a part of the response, and the receive goes on
	sent      time.Time     // their invisible durations began after it
	invisible time.Duration // the requested one
	fifo      bool
}

// arrive adds deliveries.
func (h *hand) arrive(a arrival, now time.Time) (c change) {
	items := make([]*item, len(a.list))
	var caps transport.Capabilities
	for i, d := range a.list {
		if i == 0 || d.Endpoint != a.list[i-1].Endpoint {
			caps = a.caps(d.Endpoint)
		}
		left := a.invisible
		if !d.InvisibleUntil.IsZero() {
			left = min(left, d.InvisibleUntil.Sub(now))
		}
		items[i] = newItem(d, a.source, caps, flow.First(a.sent, now, left, h.opts.MaxExtension))
		items[i].fifo = a.fifo
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credits.Refund(a.grant)
	if a.source != nil {
		if !a.more {
			a.source.underWay--
		}
		if len(a.list) > 0 {
			a.source.endpoint = a.list[len(a.list)-1].Endpoint
		}
	}
	if h.excuses.Len() > 0 && !a.fifo { // the best probe first
		slices.SortStableFunc(items, func(a, b *item) int { return cmp.Compare(h.excuses.Count(a.key()), h.excuses.Count(b.key())) })
	}
	for _, it := range items {
		h.credits.Take(it.size)
		it.count(1)
		h.unread++
		h.schedule(it, it.lease.Renewal(now, rand.Float64()))
		if !a.fifo || h.join(it) {
			h.makeReady(it)
		}
	}
	for _, it := range items {
		if it.unread() && h.unwanted(it) {
			c.release = append(c.release, h.drop(it, release)...)
		}
	}
	h.offer()
	c.hire = h.hire()
	return c
}

// join adds a delivery of an ordered subscription to its line, and reports whether it is the first
// in the line.
func (h *hand) join(it *item) (first bool) {
	it.line, first = h.lines.Join(flow.Key{Topic: it.topicNumber(), Group: it.current.OrderKey()}, it)
	return first
}

// unwanted reports whether an unread delivery should be released.
func (h *hand) unwanted(it *item) bool {
	return h.leaving || it.caps.Suspend && (h.stopped || h.gate.Shut())
}

// release is the verdict for a delivery that is returned to the queue.
var release = verdict.Decision{Verdict: transport.Verdict{Kind: transport.Release}}

// drop ends an unread delivery with a verdict. It returns the delivery, or nil if an extension has
// to end first.
func (h *hand) drop(it *item, v verdict.Decision) []*item {
	h.lines.Close(it.line)
	if h.settle(it, v) {
		return []*item{it}
	}
	return nil
}

// A change lists the actions that follow a change of the gate or the end of deliveries.
type change struct {
	release   []*item                   // deliveries to release
	end       []context.CancelCauseFunc // handlers to end
	interrupt []context.CancelFunc      // receives to interrupt
	hire      int                       // workers to start
	fetch     []*source                 // queues with a due retry
	events    []killswitch.Event        // to report
}

// add adds the actions of d.
func (c *change) add(d change) {
	c.release = append(c.release, d.release...)
	c.end = append(c.end, d.end...)
	c.interrupt = append(c.interrupt, d.interrupt...)
	c.hire += d.hire
	c.fetch = append(c.fetch, d.fetch...)
	c.events = append(c.events, d.events...)
}

// gateChanged applies the gate's state to the unread deliveries and to the receives under way.
func (h *hand) gateChanged(now time.Time) (c change) {
	if h.gate.Shut() {
		c = h.dropUnread()
	}
	if w := h.gate.Wake(); !w.IsZero() && w.Before(h.armed) {
		h.kick(now)
	}
	h.offer()
	h.work.Broadcast()
	c.hire = h.hire()
	c.events = h.gate.Events()
	return c
}

// dropUnread releases or postpones the unwanted unread deliveries, and interrupts the receives that
// can be repeated.
func (h *hand) dropUnread() (c change) {
	for _, it := range h.all() {
		if it.unread() && h.unwanted(it) {
			v := release
			if h.gate.State() == killswitch.Tripped && !h.stopped && it.caps.Verdicts.Has(transport.Snooze) && h.excuses.Count(it.key()) > 0 {
				// The next probe should receive other messages.
				v = verdict.Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: min(h.excuses.Delay(h.opts.KillSwitch.Probe), maxInvisibleDuration)}}
			}
			c.release = append(c.release, h.drop(it, v)...)
		}
	}
	for p := range h.polls {
		if p.repeatable || h.leaving {
			c.interrupt = append(c.interrupt, p.cancel)
		}
	}
	return c
}

// all returns the deliveries that maintainLeases watches, including unread ones.
func (h *hand) all() []*item { return h.leases.All() }

// schedule makes maintainLeases check a delivery at t.
func (h *hand) schedule(it *item, t time.Time) {
	if it.phase == resting && it.due.Before(t) {
		t = it.due
	}
	h.leases.Set(&it.wake, t)
	if t.Before(h.armed) {
		h.kick(t)
	}
}

// kick makes maintainLeases check at t.
func (h *hand) kick(t time.Time) {
	h.armed = t
	select {
	case h.kicked <- struct{}{}:
	default: // a check is pending
	}
}

func (h *hand) unschedule(it *item) { h.leases.Remove(&it.wake) }

const (
	// settleTimeout bounds one settlement attempt.
	settleTimeout = 3 * time.Second

	// lastTry bounds the settlement of a delivery whose handler returned after the shutdown time.
	lastTry = time.Second
)

// settleBackoff paces repeated settlements.
var settleBackoff = backoff.Exponential{
	Initial: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, Max: 5 * time.Second, MinConnectTimeout: 20 * time.Second,
}

// conclude sets the disposition of the delivery after its last settlement attempt, which ended with
// err.
func (it *item) conclude(res transport.RetryResult, err error) {
	it.disposition, it.delay, it.settleErr = it.State.Conclude(res, err)
}

// carryOut starts to settle a delivery. It does not block.
func (r *run) carryOut(it *item) {
	switch it.Decision.Act {
	case verdict.Keep:
		it.disposition, it.delay = Retried, it.Decision.Delay
		r.observe(it)
		r.follow(r.hand.keep(it, time.Now()))
	case verdict.Forget:
		r.conclude(it, transport.RetryResult{}, it.lostErr)
	case verdict.Ack, verdict.Discard:
		r.acknowledge(it)
	default:
		r.settlers.Do(func() {
			ctx, cancel := r.tryContext(it.grace)
			defer cancel()
			res, err := r.transport.Settle(ctx, &it.current, it.Decision.Request())
			r.attempted(it, res, err)
		})
	}
}

// attempted handles the result of a settlement attempt. Failed attempts are repeated until the
// lease ends, because a missing acknowledgement causes a redelivery.
func (r *run) attempted(it *item, res transport.RetryResult, err error) {
	harmless := !it.Decision.Is(transport.DeadLetter) || r.capsOf(it.current.Endpoint).IdempotentDeadLetter
	r.goOn(it, res, it.After(err, harmless, it.unsure))
}

func (r *run) goOn(it *item, res transport.RetryResult, next verdict.Step) {
	switch next {
	case verdict.Finished:
		r.conclude(it, res, nil)
	case verdict.FindHandle:
		r.settlers.Do(func() { r.goOn(it, res, it.Found(r.find(it))) })
	case verdict.TryAgain:
		if it.Last == nil { // the valid handle is known now
			r.carryOut(it)
			return
		}
		delay := max(settleBackoff.Delay(it.Tries), verdict.PushBack(it.Last))
		it.Tries++
		if at := time.Now().Add(delay); at.Before(it.lease.Until) && !r.late() {
			r.hand.later(it, at)
			if r.late() { // since the look at it
				r.concludePostponed()
			}
			return
		}
		r.conclude(it, res, it.Last)
	case verdict.RetryInstead:
		r.warn("the server rejected the handler's result; retrying the message", it, it.Last)
		it.Refused = it.Last
		it.Decision = verdict.Again(it.current.Attempt, it.Failure, r.rulesFor(it))
		r.carryOut(it)
	case verdict.Failed:
		r.conclude(it, res, it.Last)
	}
}

// find finds the valid handle by repeating the extension whose response was lost. It does not
// extend the lease.
func (r *run) find(it *item) error {
	ctx, cancel := r.tryContext(it.grace)
	defer cancel()
	handle, err := r.change(ctx, it, max(time.Until(it.lease.Until), time.Millisecond))
	it.takeOver(extension{handle: handle, err: err})
	return err
}

// change extends an invisible time. It can be repeated after a lost response, because the server
// remembers the replaced handle. RocketMQ does not; there a lost response to an extension causes a
// redelivery.
func (r *run) change(ctx context.Context, it *item, d time.Duration) (handle string, err error) {
	return r.transport.Extend(ctx, &it.current, d, it.unsure)
}

// tryContext returns the context of one settlement attempt. It outlives Run's context. grace is the
// latest grace of its deliveries.
func (r *run) tryContext(grace time.Time) (context.Context, context.CancelFunc) {
	if grace.IsZero() {
		return context.WithTimeout(r.settling, settleTimeout)
	}
	return context.WithDeadline(r.detached, grace)
}

// late reports whether the shutdown time is over. Only deliveries whose handlers return after it
// have a further settlement attempt, until item.grace.
func (r *run) late() bool { return r.settling.Err() != nil }

// concludePostponed ends the deliveries whose settlement was to be repeated.
func (r *run) concludePostponed() {
	for _, it := range r.hand.postponed() {
		r.conclude(it, transport.RetryResult{}, it.Last)
	}
}

// conclude ends a delivery.
func (r *run) conclude(it *item, res transport.RetryResult, err error) {
	it.conclude(res, err)
	r.observe(it)
	r.follow(r.hand.removeSettled(time.Now(), it))
}

// Settle ends the delivery by a verdict, in one attempt, and returns the fate of the message where
// the server reports it. The receipt handle of d is invalid afterwards. On RocketMQ, repeating a
// failed call with a transport.DeadLetter can create a second dead letter.
//
// The error matches tidegate.ErrInvalidHandle if the invisible time is over. Its code is 50100 if
// the server does not take the verdict ([transport.Capabilities].Verdicts).
func (s *Simple) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (result transport.RetryResult, err error) {
	err = s.settle(ctx, d, func() (err error) {
		result, err = s.transport.Settle(ctx, d, v)
		return err
	})
	return result, err
}

// A StuckHandler describes a call of the handler that takes longer than PushOptions.StuckAfter.
type StuckHandler struct {
	Delivery tidegate.Delivery // as it was received
	Took     time.Duration     // since the handler was called
	Stack    string            // of the handler's goroutine; empty if it could not be found
}

// watchStuck reports the delivery after StuckAfter, until stop is called. The handler's goroutine
// calls both; stop waits for a report that has begun.
func (r *run) watchStuck(it *item, of *tidegate.Delivery) (stop func()) {
	if r.opts.StuckAfter <= 0 {
		return func() {}
	}
	number, start, d := goroutine(), time.Now(), *of
	d.Properties = maps.Clone(d.Properties) // the handler owns the map
	reported := make(chan struct{})
	timer := time.AfterFunc(r.opts.StuckAfter, func() {
		defer close(reported)
		c, stuck := r.hand.replaceStuck(it)
		if !stuck {
			return
		}
		r.follow(c)
		if r.hand.wasReplaced(it) {
			r.gatherer.Replace(func(b batched) bool { return b.it == it })
		}
		s := StuckHandler{Delivery: d, Took: time.Since(start), Stack: stackOf(number)}
		r.log.Warn("handler stuck; starting another one", "topic", d.Topic, "group", r.sub.Group,
			"message_id", d.ID, "attempt", d.Attempt, "duration", s.Took, "stack", s.Stack)
		if r.opts.OnStuck != nil {
			r.guard("OnStuck panicked", d.ID, func() { r.opts.OnStuck(s) })
		}
	})
	return func() {
		if !timer.Stop() {
			<-reported
		}
	}
}

// replaceStuck lets another worker replace the one that handles the delivery, and reports whether a
// handler still works on it. At most Concurrency workers are replaced at the same time.
func (h *hand) replaceStuck(it *item) (c change, stuck bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if it.phase != running {
		return c, false
	}
	if h.stuck < h.opts.Concurrency {
		it.stuck = true
		h.stuck++
		h.running--
		h.workers--
		h.offer()
		h.work.Signal() // while the kill switch limits the handlers, idle workers wait for this place
		c.hire = h.hire()
	}
	return c, true
}

// wasReplaced reports whether another worker replaced the one that handled the delivery.
func (h *hand) wasReplaced(it *item) bool {
	if h.opts.StuckAfter <= 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return it.stuck
}

// maxStack bounds the stacks of all goroutines that are searched for that of a handler, in bytes.
const maxStack = 16 << 20

// goroutine returns the number of the goroutine that calls it, as stacks have it: "goroutine 12 ".
func goroutine() string {
	var buf [64]byte
	line := buf[:runtime.Stack(buf[:], false)]
	if i := bytes.IndexByte(line, '['); i > 0 {
		return string(line[:i])
	}
	return ""
}

// stackOf returns the stack of a goroutine, by its number from Goroutine.
func stackOf(number string) string {
	if number == "" {
		return ""
	}
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) || len(buf) >= maxStack {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 4*len(buf))
	}
	for stack := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.HasPrefix(stack, []byte(number)) {
			return string(stack)
		}
	}
	return ""
}

// A pool runs jobs in goroutines, at most limit at the same time, which end when there is
// nothing to do.
type pool struct {
	limit int
	start func(func())

	mu      sync.Mutex
	running int
	jobs    []func()
}

// newPool returns a pool whose goroutines begin by start.
func newPool(limit int, start func(func())) *pool { return &pool{limit: limit, start: start} }

// Do runs a job, soon.
func (p *pool) Do(job func()) {
	p.mu.Lock()
	if p.running == p.limit {
		p.jobs = append(p.jobs, job)
		p.mu.Unlock()
		return
	}
	p.running++
	p.mu.Unlock()
	p.start(func() {
		for job != nil {
			job()
			job = p.next()
		}
	})
}

func (p *pool) next() (job func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.jobs) == 0 {
		p.running--
		return nil
	}
	job = p.jobs[0]
	p.jobs[0] = nil
	p.jobs = p.jobs[1:]
	return job
}
