package consumer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/flow"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

const (
	// minPoll is the shortest time between two empty receives of a queue on a server that waits for
	// less than the requested time.
	minPoll = 100 * time.Millisecond

	// shortPoll is the wait of a receive on a server that cannot repeat receives. Its receives have
	// to end before the consumer stops, because a cancelled one may take a message. It is
	// RocketMQ's minimum.
	shortPoll = 5 * time.Second

	// overlap is the largest number of concurrent receives of a queue with a backlog.
	overlap = 8

	// maxRecalls is the largest number of repetitions of a cancelled receive.
	maxRecalls = 8
)

// A source is a queue of a topic.
type source struct {
	topic *topic
	queue int

	// Guarded by hand.mu.
	underWay int    // concurrent receives
	helpers  int    // loops besides the first one
	removed  bool   // the consumer no longer has the queue
	endpoint string // server of the last delivery; empty before
}

// receive is the receive loop of a queue. While there is a backlog, helpers run beside the first
// loop: their receives do not wait for messages, and they end when a receive returns fewer messages
// than requested. helper is true for them.
func (r *run) receive(s *source, helper bool) {
	failures := 0
	var outage recovery
	at := attempt{}
	permits := permits{Limiter: r.opts.Limiter, Report: r.reportPanic}
	full := helper // there is a backlog
	empty := 0     // receives in turn without a message
	unwatched := false
	for {
		settings, caps := r.ofSource(s)
		most := r.permitted(&permits, s.topic, batchSize(settings), full, helper)
		if most == 0 {
			return
		}
		watcher := r.watcher(caps)
		if unwatched { // the last receive found nothing and could not leave a watch
			watcher = nil
		}
		g, ok := r.hand.reserve(s, most, !helper, watcher != nil)
		if !ok {
			return
		}
		if at.id == "" && (r.ordered(settings) || caps.RepeatReceive) {
			at.id = tidegate.NewMessageID()
		}
		q := r.request(settings, caps, s, g, at)
		if helper {
			q.Wait, watcher = 0, nil
		}
		start := time.Now()
		n, watched, err := r.receiveOnce(s, q, g, &at, caps.RepeatReceive, watcher)
		if permits.Spend(n); n > 0 {
			failures, outage = 0, recovery{}
		}
		switch {
		case errors.Is(err, errInterrupted):
			at = attempt{}
			continue // reserve decides whether there is another receive
		case err != nil && helper:
			return
		case err != nil:
			wait, end := r.receiveFailed(s.topic, "receiving failed", err, failures)
			if end {
				return
			}
			failures++
			if errors.Is(err, transport.ErrUnreadable) {
				at = attempt{} // the same ID would return the same response until its messages' invisible time ends
			}
			if outage.await(r.running, r.transport, wait, err) != nil {
				return
			}
			continue // otherwise with the same attempt ID, because the response may be lost
		}
		failures, at, outage = 0, attempt{}, recovery{}
		full = n >= g.Messages
		unwatched = watcher != nil && !watched && n == 0
		if empty++; n > 0 {
			empty = 0
		}
		switch {
		case helper && !full:
			return
		case watched && empty < maxEmpty:
		case unwatched: // the next receive waits on the server
		case n == 0:
			if rest := minPoll - time.Since(start); rest > 0 && r.pause(rest) != nil {
				return
			}
		case full && !helper:
			r.help(s)
		}
	}
}

// help starts another concurrent receive of a queue, unless there are enough.
func (r *run) help(s *source) {
	r.hand.startHelper(s, func() {
		r.receivers.Go(func() {
			defer r.hand.endHelper(s)
			r.receive(s, true)
		})
	})
}

// errInterrupted is the cause of a receive that ends because the run ends or pauses.
var errInterrupted = errors.New("interrupted")

// An attempt is a receive and its repetitions after a lost response.
type attempt struct {
	id      string // empty: it cannot be repeated
	arrived int    // parts of the responses
}

// receiveOnce makes one receive, and adds its deliveries; n is their number. If a watcher could
// leave a watch, receiveOnce then waits until another receive may find a message, and watched is
// true.
func (r *run) receiveOnce(s *source, q transport.ReceiveRequest, g flow.Grant, at *attempt, repeatable bool, watcher transport.Watcher) (n int, watched bool, err error) {
	ctx, cancel := context.WithCancel(r.polling)
	defer cancel()
	p := &poll{source: s, cancel: cancel, repeatable: repeatable}
	if !r.hand.beginPoll(p) {
		r.hand.giveUp(s, g)
		return n, false, errInterrupted
	}
	arrive := func(ds []*tidegate.Delivery, since time.Time, more bool) {
		part := g
		if more {
			part, g = g.Split(len(ds), bodies(ds))
		}
		endpoint := ""
		if len(ds) > 0 {
			endpoint = ds[0].Endpoint
		}
		r.follow(r.hand.arrive(arrival{
			list: ds, caps: r.capsOf, source: s, grant: part, more: more, sent: since,
			invisible: q.InvisibleDuration, fifo: r.ordered(r.settingsOf(s.topic, endpoint)),
		}, time.Now()))
		n += len(ds)
	}
	sent := time.Now()
	var ds []*tidegate.Delivery
	var ready <-chan struct{}
	streamer, streams := r.transport.(transport.Streamer)
	switch {
	case watcher != nil:
		ds, ready, err = watcher.ReceiveOrWatch(ctx, q)
	case streams && repeatable && q.Wait > 0: // what is lost can be repeated, and a helper must end soon
		ds, err = streamer.ReceiveParts(ctx, q, func(part []*tidegate.Delivery, since time.Time) {
			at.arrived++
			arrive(part, since, true)
			r.received(s.topic)
		})
	default:
		ds, err = r.transport.Receive(ctx, q)
	}
	r.hand.endPoll(p)
	if err != nil && ctx.Err() != nil {
		if repeatable {
			q.Arrived = at.arrived
			ds = r.recall(q)
		}
		if err = errInterrupted; len(ds) == 0 {
			r.hand.giveUp(s, g)
			return n, false, err
		}
	}
	if err != nil && !errors.Is(err, errInterrupted) {
		r.hand.giveUp(s, g)
		return n, false, err
	}
	arrive(ds, sent, false)
	if err == nil {
		r.received(s.topic)
	}
	if ready != nil && err == nil {
		r.awaitReady(ctx, p, ready)
	}
	return n, ready != nil, err
}

// bodies returns the size of the bodies in bytes.
func bodies(ds []*tidegate.Delivery) (n int) {
	for _, d := range ds {
		n += len(d.Body)
	}
	return n
}

// recall repeats a cancelled receive, and returns the deliveries that were in transit. The server
// counts them as in flight, so without recall no consumer would receive them before their invisible
// time ends.
func (r *run) recall(q transport.ReceiveRequest) []*tidegate.Delivery {
	q.Repeat, q.Wait = true, 0
	for n := range maxRecalls {
		ctx, cancel := r.tryContext(time.Time{})
		ds, err := r.transport.Receive(ctx, q)
		cancel()
		if err == nil {
			return ds
		}
		if verdict.EndingOf(err) == verdict.AtOnce || verdict.Code(err) == tidegate.CodeNotImplemented || r.late() || backoff.Sleep(r.settling, settleBackoff.Delay(n)) != nil {
			r.log.Warn("cancelled receive not repeated; its messages may stay invisible until their invisible time ends",
				"topic", q.Topic, "group", q.Group, "error", err)
			return nil
		}
	}
	return nil
}

// batchSize returns the largest number of messages for one receive.
func batchSize(s *transport.ConsumerSettings) int {
	if s.ReceiveBatchSize > 0 {
		return s.ReceiveBatchSize
	}
	return maxBatch
}

func (r *run) request(set *transport.ConsumerSettings, caps transport.Capabilities, s *source, g flow.Grant, at attempt) transport.ReceiveRequest {
	wait := r.opts.LongPolling
	if wait == 0 {
		wait = set.LongPolling
	}
	if wait <= 0 {
		wait = defaultLongPolling
	}
	if !caps.RepeatReceive {
		wait = min(wait, shortPoll)
	}
	inv, _ := r.hand.invisible(time.Time{}, time.Time{})
	q := transport.ReceiveRequest{
		Group: r.sub.Group, Topic: s.topic.name, Queue: s.queue, Push: true, Filter: s.topic.filter,
		Max: g.Messages, MaxBytes: g.Bytes, InvisibleDuration: inv, Wait: wait, AttemptID: at.id, Arrived: at.arrived,
	}
	if r.lite != nil {
		q.LiteConsumer = r.lite.ID
	}
	return q
}

// pause waits for d, or returns an error if the run ends first.
func (r *run) pause(d time.Duration) error { return backoff.Sleep(r.running, d) }

// A ReceiveFailure describes a failed receive, or a failed request for the group's settings.
type ReceiveFailure struct {
	Topic    string
	Group    string
	Err      error
	Failures int           // consecutive failures, including this one
	RetryIn  time.Duration // time to the next attempt; 0 if there is none because Run ends
}

// receiveFailed reports a failure. It returns the wait before the next attempt, or true if the
// failure ends the run.
func (r *run) receiveFailed(t *topic, what string, err error, failures int) (wait time.Duration, end bool) {
	if end = r.refused(t, err, time.Now()); !end {
		wait = receiveWait(guard.Policy("ReceiveBackoff", r.opts.ReceiveBackoff, r.reportPanic), failures, err)
	}
	r.log.Warn(what, "topic", t.name, "group", r.sub.Group, "error", err, "retry_in", wait)
	switch {
	case r.opts.OnReceiveFailure == nil && r.logsNothing && r.warnNow(t, time.Now()):
		slog.Default().Warn("tidegate: a consumer without Logger and OnReceiveFailure cannot receive: "+what,
			"topic", t.name, "group", r.sub.Group, "error", err, "failures", failures+1, "retry_in", wait)
	case r.opts.OnReceiveFailure != nil:
		r.guard("OnReceiveFailure panicked", "", func() {
			r.opts.OnReceiveFailure(ReceiveFailure{Topic: t.name, Group: r.sub.Group, Err: err, Failures: failures + 1, RetryIn: wait})
		})
	}
	if end {
		r.fatal(&refusal{err, t.name})
	}
	return wait, end
}

// A bid is a receive that waits for credits.
type bid struct {
	source *source
	batch  int
	prompt bool
	grant  flow.Grant    // valid once ended is closed; zero if no further receive may be made
	ended  chan struct{} // closed under hand.mu
}

// reserve waits until a receive of the queue may begin, and returns its grant, or false if no
// further receive may be made. Only the first receive of a queue waits. A prompt receive does not
// wait for messages on the server.
func (h *hand) reserve(s *source, batch int, wait, prompt bool) (g flow.Grant, ok bool) {
	h.mu.Lock()
	b := &bid{source: s, batch: batch, prompt: prompt, ended: make(chan struct{})}
	if !wait {
		defer h.mu.Unlock()
		if g = h.grant(b); !prompt {
			h.offer() // prompt receives no longer wait for each other once one is parked
		}
		return g, g.Messages > 0
	}
	h.bids = append(h.bids, b)
	h.offer()
	waits := slices.Contains(h.bids, b)
	h.mu.Unlock()
	if waits {
		defer h.waits.Add(-1)
		if h.waits.Add(1) == 1 { // later acknowledgements do not wait
			h.hurry()
		}
	}
	<-b.ended
	return b.grant, b.grant.Messages > 0
}

// ask returns the credit request of a receive, or false if no receive may begin.
func (h *hand) ask(b *bid) (flow.Ask, bool) {
	limit, buffered := h.gate.Limit(h.opts.Concurrency), 0
	if h.gate.Open() {
		buffered = max(h.opts.MaxBuffered, 0)
	}
	window := limit + h.stuck
	if h.gate.State() == killswitch.Probing {
		window += min(h.excuses.Len(), killswitch.Choice-1)
	}
	h.credits.SetWindow(window, buffered)
	return flow.Ask{
		Batch: b.batch, UnderWay: b.source.underWay, Spare: b.source.topic.inHand == 0 && h.gate.Open(), Prompt: b.prompt,
	}, limit > 0
}

// grant reserves messages for a receive, or none if the receive has to wait.
func (h *hand) grant(b *bid) (g flow.Grant) {
	s := b.source
	if ask, ok := h.ask(b); ok && !h.stopped && !s.removed {
		g = h.credits.Grant(ask)
	}
	if g.Messages > 0 {
		s.underWay++
		h.lastGrant++
		s.topic.lastGrant = h.lastGrant
	}
	return g
}

// offer grants the free credits to the waiting receives. The next one belongs to the topic whose
// last grant is the longest ago, so that a topic with many queues and a large backlog does not
// delay the others.
func (h *hand) offer() {
	h.bids = slices.DeleteFunc(h.bids, func(b *bid) bool {
		over := h.stopped || b.source.removed
		if over {
			close(b.ended)
		}
		return over
	})
	for {
		next := -1
		for i, b := range h.bids {
			ask, ok := h.ask(b)
			if ok && (next < 0 || b.source.topic.lastGrant < h.bids[next].source.topic.lastGrant) && h.credits.May(ask) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		b := h.bids[next]
		b.grant = h.grant(b)
		h.bids = slices.Delete(h.bids, next, next+1)
		close(b.ended)
	}
}

// giveUp ends the reservation of a receive without a response.
func (h *hand) giveUp(s *source, g flow.Grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credits.Refund(g)
	s.underWay--
	h.offer()
}

// permits are those of one loop. They outlive receives that bring fewer messages. The zero value
// permits all.
type permits struct {
	Limiter ratelimit.Limiter // nil permits all
	Report  guard.Report      // of its panics; may be nil

	left int
}

// Await waits until at least one message is permitted, and returns how many may be received now, at
// most most. With more, it takes as many as the limiter permits without a wait. It returns none if
// ctx ends first, or with an error that is the limiter's own. A helper does not wait if the limiter
// can report that it would have to, and gets none: otherwise the helpers of one topic would stand
// before the other topics in the limiter's queue.
func (p *permits) Await(ctx context.Context, most int, more, helper bool) (n int, err error) {
	if p.Limiter == nil {
		return most, nil
	}
	a, allows := p.Limiter.(interface{ Allow() bool })
	allow := func() (ok bool) {
		guard.Call("Limiter", p.Report, func() { ok = a.Allow() })
		return ok
	}
	if helper && allows && p.left == 0 {
		if !allow() {
			return 0, nil
		}
		p.left = 1
	}
	if p.left == 0 {
		err := guard.Wait(ctx, "Limiter", p.Report, func() error { return ratelimit.Wait(ctx, p.Limiter, 1) })
		if err != nil {
			if ctx.Err() != nil {
				return 0, nil //nolint:nilerr // the end of ctx is no fault of the limiter
			}
			return 0, err
		}
		p.left = 1
	}
	if allows && more {
		for p.left < most && allow() {
			p.left++
		}
	}
	return min(p.left, most), nil
}

// Spend counts n received messages.
func (p *permits) Spend(n int) { p.left = max(p.left-n, 0) }

const (
	// manyTopics is the number of topics above which a consumer leaves watches. With fewer topics
	// it uses waiting receives: they need one request for each message, and a watch also needs a
	// report. But a waiting receive reserves messages of PushOptions.MaxBuffered, so many of them
	// leave each other little.
	manyTopics = 16

	// rewatch is the mean time after which a queue with a watch is received from again. The server
	// reports each message, so this only bounds the effect of a fault. The actual times are between
	// half of it and one and a half times it.
	rewatch = 5 * time.Minute

	// maxEmpty is the number of consecutive receives without a message before the consumer keeps
	// minPoll between them. Other consumers may take each message that the server reports.
	maxEmpty = 4
)

// watcher returns the transport if receives leave watches, and nil otherwise.
func (r *run) watcher(caps transport.Capabilities) transport.Watcher {
	if !caps.Watch || len(r.topics) <= manyTopics {
		return nil
	}
	w, _ := r.transport.(transport.Watcher)
	return w
}

// awaitReady waits until a watch is ready or the receives of the queue are interrupted.
func (r *run) awaitReady(ctx context.Context, p *poll, ready <-chan struct{}) {
	if !r.hand.beginWatch(p) {
		return
	}
	defer r.hand.endWatch(p)
	again := time.NewTimer(rewatch/2 + rand.N(rewatch))
	defer again.Stop()
	select {
	case <-ready:
	case <-again.C:
	case <-ctx.Done():
	}
}

// A task is an action of maintainLeases on a delivery.
type task struct {
	it     *item
	do     taskKind
	cancel context.CancelCauseFunc // of cancelHandler
}

type taskKind int

const (
	extendLease   taskKind = iota
	cancelHandler          // the lease is lost
	endLost                // the lease of a delivery without a handler is lost
	settleAgain
)

// idleWatch is the interval of maintainLeases if there is nothing to watch.
const idleWatch = time.Hour

// due returns the tasks at now, and the time of the next ones.
func (h *hand) due(now time.Time) (tasks []task, c change, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate.Tick(now, h.opts.Concurrency) {
		c = h.gateChanged(now)
	}
	first := h.leases.First()
	for ; first != nil && !first.At.After(now); first = h.leases.First() {
		it := first.Value
		switch {
		case it.phase == settling:
			h.unschedule(it)
			tasks = append(tasks, task{it: it, do: settleAgain})
		case !now.Before(it.lease.Until):
			tasks = append(tasks, h.lose(it, nil))
		case it.phase == resting && !now.Before(it.due):
			h.again(it, now)
			c.hire += h.hire()
		default:
			it.renewing = true
			h.schedule(it, it.lease.Until)
			tasks = append(tasks, task{it: it, do: extendLease})
		}
	}
	next = now.Add(idleWatch)
	if first != nil {
		next = first.At
	}
	if w := h.gate.Wake(); !w.IsZero() && w.Before(next) {
		next = w
	}
	c.fetch = h.reminders.Due(now)
	if len(h.reminders) > 0 && h.reminders[0].At.Before(next) {
		next = h.reminders[0].At
	}
	h.armed = next
	return tasks, c, next
}

// lose ends the lease of an item that is not settling.
func (h *hand) lose(it *item, err error) task {
	it.lost = true
	if err != nil {
		it.lostErr = err
	}
	if it.phase == running {
		h.unschedule(it)
		return task{it: it, do: cancelHandler, cancel: it.cancel}
	}
	h.lines.Close(it.line)
	h.settle(it, verdict.Decision{Act: verdict.Forget})
	return task{it: it, do: endLost}
}

// An extension is the result of a request to extend a lease.
type extension struct {
	sent, now time.Time
	inv       time.Duration
	handle    string
	err       error
}

// extended applies the result of an extension. carryOut reports that the delivery's verdict, which
// had to wait for the extension, should be carried out now.
func (h *hand) extended(it *item, x extension) (t task, lost, carryOut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.renewals.Observe(x.now.Sub(x.sent))
	it.renewing = false
	it.takeOver(x)
	switch {
	case it.lost || it.phase == gone:
		return t, false, false
	case x.err == nil:
		it.lease = it.lease.Extended(x.sent, x.inv)
	}
	switch {
	case it.phase == settling:
		return t, false, true
	case x.err == nil:
		h.schedule(it, it.lease.Renewal(x.now, rand.Float64()))
	case errors.Is(x.err, tidegate.ErrInvalidHandle):
		return h.lose(it, x.err), true, false
	case verdict.Code(x.err) == protocol.CodeIllegalInvisibleTime: // the delivery has reached the server's maximum
		it.lostErr = x.err
		h.schedule(it, it.lease.Until)
	default:
		h.schedule(it, it.lease.Retry(x.now, x.inv))
	}
	return t, false, false
}

// takeOver records the valid handle after a change of the invisible duration.
func (it *item) takeOver(x extension) {
	it.unsure = x.err != nil && (it.unsure || verdict.Perhaps(x.err))
	if x.err == nil && x.handle != "" {
		it.current.Handle = x.handle
	}
}

// invisible returns the invisible duration to request, and the timeout of one attempt to extend a
// lease that ends at until.
func (h *hand) invisible(now, until time.Time) (inv, timeout time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	inv = h.renewals.Floor(h.opts.InvisibleDuration)
	return inv, h.renewals.Timeout(inv, until.Sub(now))
}

// later schedules the delivery's verdict to be carried out again at t.
func (h *hand) later(it *item, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.schedule(it, t)
}

// A poll is a receive under way.
type poll struct {
	source     *source
	cancel     context.CancelFunc
	repeatable bool // after its cancellation a repetition can return the deliveries in transit
}

// beginPoll records a receive, and reports whether it may be sent.
func (h *hand) beginPoll(p *poll) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped || p.source.removed || h.gate.Shut() {
		return false
	}
	h.polls[p] = struct{}{}
	return true
}

// beginWatch is beginPoll for a queue with a watch. A watch reserves no messages, so the queue
// takes no part in the sharing of credits until endWatch.
func (h *hand) beginWatch(p *poll) bool {
	p.repeatable = true // nothing is in transit
	if !h.beginPoll(p) {
		return false
	}
	h.addSources(-1)
	return true
}

func (h *hand) endWatch(p *poll) {
	h.endPoll(p)
	h.addSources(1)
}

func (h *hand) endPoll(p *poll) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.polls, p)
}

// remove ends the receives of a queue.
func (h *hand) remove(s *source) (interrupt []context.CancelFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.removed = true
	for p := range h.polls {
		if p.source == s && p.repeatable {
			interrupt = append(interrupt, p.cancel)
		}
	}
	h.offer()
	return interrupt
}

// stop ends receiving. It releases unread deliveries if that costs them no attempt. With all it
// releases them in any case, and ends the handlers; no further handler begins.
func (h *hand) stop(all bool) change {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped, h.leaving = true, h.leaving || all
	h.offer()
	c := h.dropUnread()
	for _, it := range h.all() {
		if all && it.cancel != nil {
			c.end = append(c.end, it.cancel)
		}
	}
	return c
}

// close records that no further deliveries arrive.
func (h *hand) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.checkEmpty()
}

// postponed removes and returns the deliveries with a settlement to repeat.
func (h *hand) postponed() (list []*item) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, it := range h.all() {
		if it.phase == settling {
			h.unschedule(it)
			list = append(list, it)
		}
	}
	return list
}

// pause closes or opens the gate for Push.Pause and Push.Resume.
func (h *hand) pause(paused bool, now time.Time) (c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate.Pause(paused) {
		c = h.gateChanged(now)
	}
	return c
}
