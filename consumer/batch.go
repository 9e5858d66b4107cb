package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

// The defaults of bytes and time are Apache Pulsar's (BatchReceivePolicy).
const (
	defaultBatchMessages    = 100
	defaultBatchBytes       = 10 << 20
	defaultBatchWait        = 100 * time.Millisecond
	defaultBatchConcurrency = 4
)

// A BatchHandler consumes a batch of at least one delivery, sorted by topic, queue and offset. Its
// result is one of these:
//
//   - nil acknowledges all messages;
//   - a [BatchResult] has a verdict for each message;
//   - any other error is the verdict for all messages; see [Handler].
//
// A panic is a failure of all messages, and so is a runtime.Goexit.
//
// A batch of a FIFO group has at most one message of each message group. The next message of a
// message group is in a later batch, after the first one was consumed or became a dead letter. If
// the first one fails, the next one waits until its retry has succeeded. Other message groups are
// not affected.
//
// The consumer extends the invisible time of messages that wait for a batch, and while the handler
// works. The handler's ctx ends when the ctx of one of its messages ends, with the same cause:
// [ErrLeaseLost] or [ErrShutdown]. [BatchContext] returns the ctx of a message. The handler may
// change the deliveries, but not the bytes of their bodies.
type BatchHandler func(ctx context.Context, ds []*tidegate.Delivery) error

// A BatchResult is the error of a [BatchHandler] with a verdict for each message of the batch, in
// the order in which the handler got them. nil acknowledges the message; other errors have the
// meaning that they have for a [Handler]. A BatchResult of nils acknowledges all messages. Use
// [Snooze](0) for messages that the handler did not process: on servers that take
// [transport.Snooze] they are delivered again without spending an attempt. The BatchResult may be
// wrapped.
//
// A BatchResult of another length than the batch is a failure of all messages.
type BatchResult []error

// Error returns the number of failed messages and the first of their errors.
func (r BatchResult) Error() string {
	failed, first := 0, error(nil)
	for _, err := range r {
		if err != nil {
			if failed++; failed == 1 {
				first = err
			}
		}
	}
	if failed == 0 {
		return fmt.Sprintf("all %d messages of the batch succeeded", len(r))
	}
	return fmt.Sprintf("%d of %d messages of the batch failed, the first one with: %v", failed, len(r), first)
}

// Unwrap returns the errors that are not nil.
func (r BatchResult) Unwrap() (errs []error) {
	for _, err := range r {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// BatchOptions are the limits of the batches of [NewBatch]. A batch is complete when it has
// MaxMessages or MaxBytes, or when its first message has waited for MaxWait. It is handled at once,
// or waits while PushOptions.Concurrency batches are being handled.
type BatchOptions struct {
	// MaxMessages is the largest number of messages in a batch. Default: 100.
	MaxMessages int

	// MaxBytes bounds the bodies of a batch, in bytes. A larger message is a batch of its own. It
	// is at most PushOptions.MaxBytes. Default: 10 MiB, or PushOptions.MaxBytes if that is less.
	MaxBytes int

	// MaxWait is the time for which a message waits for a fuller batch. In a FIFO group a long wait
	// delays the later messages of the message group. Negative means none. Default: 100 ms.
	MaxWait time.Duration
}

// NewBatch returns a consumer like [NewPush] whose handler gets several messages at once, within
// the limits of opts.Batch. PushOptions.Concurrency is the number of batches that are handled at
// the same time, 4 by default. Meanwhile the consumer gathers the messages of one more batch.
//
// All other features apply to each message, as without batches: leases, verdicts, policies,
// outcomes, limiter, kill switch and StuckAfter. PushOptions.Middleware is also called for each
// message. A call of it lasts from the start of the wait for the batch until the batch was handled.
func NewBatch(t Transport, sub Subscription, handler BatchHandler, opts PushOptions) (*Push, error) {
	var f faults
	if handler == nil {
		f.add("handler", "it is nil; give the function that consumes a batch")
	}
	if opts.Concurrency == 0 {
		opts.Concurrency = defaultBatchConcurrency
	}
	limits := opts.Batch.limits(opts)
	if f.batch(opts, limits); f.empty() {
		opts.Concurrency = limits.Items * (limits.Batches + 1) // the next batch is gathered in the meantime
	}
	p, err := newPush(f, t, sub, gathered, opts)
	if err != nil {
		return nil, err
	}
	p.batchHandler, p.limits = handler, limits
	return p, nil
}

// limits returns the limits with their defaults.
func (b BatchOptions) limits(o PushOptions) limits {
	l := limits{Items: b.MaxMessages, Bytes: b.MaxBytes, Wait: b.MaxWait, Batches: o.Concurrency}
	o = o.withDefaults()
	if l.Items == 0 {
		l.Items = defaultBatchMessages
	}
	if l.Bytes == 0 {
		l.Bytes = min(defaultBatchBytes, o.MaxBytes)
	}
	if l.Wait == 0 {
		l.Wait = defaultBatchWait
	}
	return l
}

func (f *faults) batch(o PushOptions, l limits) {
	f.notNegative("Concurrency", int64(l.Batches), l.Batches)
	f.notNegative("Batch.MaxMessages", int64(l.Items), l.Items)
	f.notNegative("Batch.MaxBytes", int64(l.Bytes), l.Bytes)
	if most := maxConcurrency / (max(l.Batches, 1) + 1); l.Items > most {
		f.add("Batch.MaxMessages", "%d are too many with a Concurrency of %d; give at most %d", l.Items, l.Batches, most)
	}
	o = o.withDefaults()
	if l.Bytes > o.MaxBytes && o.MaxBytes > 0 {
		f.add("Batch.MaxBytes", "%d exceeds MaxBytes (%d), the limit of all messages in hand; give less, or raise MaxBytes", l.Bytes, o.MaxBytes)
	}
	lease, field := o.MaxExtension, "MaxExtension"
	if lease < 0 {
		lease, field = o.InvisibleDuration, "InvisibleDuration"
	}
	if l.Wait >= lease {
		f.add("Batch.MaxWait", "%v is not less than %s (%v), after which the messages are redelivered; give less", l.Wait, field, lease)
	}
}

// A batched is a message that waits for a batch.
type batched struct {
	ctx context.Context //nolint:containedctx // of the waiting handler
	d   *tidegate.Delivery
	it  *item
}

// errLostContext is the failure of a message without a known batch.
var errLostContext = errors.New("a middleware called its next handler with a context that is not derived from its own context")

// gathered is the handler of a message of a batch consumer. It waits for the message's batch.
func gathered(ctx context.Context, d *tidegate.Delivery) error {
	c, ok := ctx.Value(deliveryKey{}).(*deliveryContext)
	if !ok {
		return errLostContext
	}
	return c.run.gatherer.Do(ctx, c.run.running.Done(), batched{ctx, d, c.it}, len(d.Body))
}

// handleBatch calls the batch handler with the messages in order, and sets the result of each.
func (r *run) handleBatch(arrived []batched, results []error) {
	batch := slices.SortedFunc(slices.Values(arrived), func(a, b batched) int {
		return cmp.Or(strings.Compare(a.d.Topic, b.d.Topic), cmp.Compare(a.d.Queue, b.d.Queue), cmp.Compare(a.d.Offset, b.d.Offset))
	})
	ctx, cancel := context.WithCancelCause(&batchContext{r.handlers, batch})
	defer cancel(nil)
	ds, verdicts := make([]*tidegate.Delivery, len(batch)), make([]error, len(batch))
	of := make(map[*item]*error, len(batch))
	var stops []func()
	for i, b := range batch {
		ds[i], of[b.it] = b.d, &verdicts[i]
		stop := context.AfterFunc(b.ctx, func() { cancel(context.Cause(b.ctx)) })
		stops = append(stops, func() { stop() }, r.watchStuck(b.it, b.d))
	}
	start := time.Now()
	defer func() {
		for _, stop := range stops {
			stop()
		}
		for i, b := range arrived {
			results[i] = *of[b.it]
			b.it.batchTook.Store(int64(time.Since(start)))
		}
	}()
	r.callBatch(ctx, ds, verdicts)
}

// callBatch calls the batch handler. Like call, it starts with a failure, because the goroutine may
// end in any function of the program, also while the error is read.
func (r *run) callBatch(ctx context.Context, ds []*tidegate.Delivery, results []error) {
	returned := false
	var err error // the handler's error
	p := &PanicError{Value: verdict.Goexit}
	fill := func(err error) {
		for i := range results {
			results[i] = err
		}
	}
	fill(p)
	first := ds[0].ID // the deliveries belong to the handler
	defer func() {
		if p == nil {
			return
		}
		v := recover()
		p.Stack = debug.Stack()
		if returned {
			v = verdict.Unreadable(err, v)
		}
		if v != nil {
			p.Value = v
		}
		r.log.LogAttrs(ctx, slog.LevelError, "batch handler panicked", slog.Int("messages", len(results)), slog.String("first_message_id", first),
			slog.String("panic", verdict.Show(p.Value)), slog.String("stack", string(p.Stack)))
	}()
	err = r.batchHandler(ctx, ds)
	returned = true
	verdicts, ok := errors.AsType[BatchResult](err)
	switch {
	case ok && len(verdicts) == len(results):
		copy(results, verdicts)
	case ok:
		fill(fmt.Errorf("the BatchResult has %d results for %d messages: %w", len(verdicts), len(results), err))
	default:
		fill(err)
	}
	p = nil
}

type batchKey struct{}

// A batchContext is a batch handler's context with the contexts of its messages.
type batchContext struct {
	context.Context //nolint:containedctx // it is one
	batch           []batched
}

// Value returns the context itself for batchKey.
func (c *batchContext) Value(key any) any {
	if key == (batchKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// BatchContext returns the context of message i of a batch, counted from 0, for example for
// [FinalAttempt]. It has the values that PushOptions.Middleware added. ctx is the context of the
// [BatchHandler]. BatchContext panics if ctx belongs to no batch, or the batch has no message i.
func BatchContext(ctx context.Context, i int) context.Context {
	return ctx.Value(batchKey{}).(*batchContext).batch[i].ctx
}

// A batcher sends items in requests. Create one with [newBatch].
//
// A request begins at once if no other began for ackGather, if ackEnough items are there, if one of
// them is in a hurry, or if all are. Otherwise it waits for further items until ackGather after the
// begin of the newest request. Wake-ups: pending items are looked at by the end of a request under
// way, or else by the timer; whoever makes all of them urgent calls look.
type batcher[T any] struct {
	items    int
	requests int
	urgent   func() bool // all items are in a hurry; called with mu held
	start    func(func())
	send     func([]T)

	mu      sync.Mutex
	pending []T
	hurry   bool        // one of them does not wait
	sending int         // requests under way
	begun   time.Time   // the newest request
	timer   *time.Timer // looks at the pending items; nil before the first wait
	armed   bool        // the timer will
}

// newBatch returns a batcher of at most so many items in a request and so many requests under way.
// Its goroutines begin by start. send makes one request; it may change the slice, which is valid
// until it returns.
func newBatch[T any](items, requests int, urgent func() bool, start func(func()), send func([]T)) *batcher[T] {
	return &batcher[T]{items: items, requests: requests, urgent: urgent, start: start, send: send}
}

// Add sends an item, soon; at once if it is in a hurry.
func (b *batcher[T]) Add(x T, hurry bool) {
	b.mu.Lock()
	b.pending = append(b.pending, x)
	b.hurry = b.hurry || hurry
	b.mu.Unlock()
	b.look()
}

// look begins a request if one is due and another may be under way.
func (b *batcher[T]) look() {
	b.mu.Lock()
	begin := b.sending < b.requests && b.due(time.Now())
	if begin {
		b.sending++
	}
	b.mu.Unlock()
	if begin {
		b.start(b.run)
	}
}

// due reports whether a request with the pending items begins now. If it begins later, the timer
// looks again. mu is held.
func (b *batcher[T]) due(now time.Time) bool {
	if len(b.pending) == 0 {
		return false
	}
	wait := b.begun.Add(ackGather).Sub(now)
	if b.hurry || b.urgent() || len(b.pending) >= ackEnough || wait <= 0 {
		return true
	}
	switch {
	case b.armed:
	case b.timer == nil:
		b.timer = time.AfterFunc(wait, b.fired)
	default:
		b.timer.Reset(wait)
	}
	b.armed = true
	return false
}

// fired looks at the pending items when the wait is over. If a request began meanwhile, the wait
// begins anew.
func (b *batcher[T]) fired() {
	b.mu.Lock()
	b.armed = false
	b.mu.Unlock()
	b.look()
}

// run sends the pending items, and ends when no request is due.
func (b *batcher[T]) run() {
	var list []T
	for {
		clear(list)
		if list = b.collect(list[:0]); len(list) == 0 {
			return
		}
		b.send(list)
	}
}

// collect moves the items of one request to list. If no request is due, the sender ends.
func (b *batcher[T]) collect(list []T) []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !b.due(now) {
		b.sending--
		return list
	}
	n := min(len(b.pending), b.items)
	b.begun = now
	b.hurry = b.hurry && n < len(b.pending)
	list = append(list, b.pending[:n]...)
	rest := copy(b.pending, b.pending[n:])
	clear(b.pending[rest:])
	b.pending = b.pending[:rest]
	return list
}

const (
	// maxAcks is the largest number of acknowledgements in one request.
	maxAcks = 512

	// ackRequests is the largest number of concurrent acknowledgement requests for a server and
	// topic: one collects messages while the other is under way.
	ackRequests = 2

	// ackGather is how long after the begin of a request the next one waits for further
	// acknowledgements, and ackEnough is how many do not wait. An acknowledgement delays nothing but
	// its fsync, which the fsyncs of messages wait for.
	ackGather = 5 * time.Millisecond
	ackEnough = 32
)

// An ackKey names the acknowledgements that share requests.
type ackKey struct{ endpoint, topic string }

// acknowledge acknowledges a delivery in one of the next requests.
func (r *run) acknowledge(it *item) {
	key := ackKey{it.current.Endpoint, it.current.Topic}
	b, ok := r.ackers.Load(key)
	if !ok {
		b, _ = r.ackers.LoadOrStore(key, newBatch(maxAcks, ackRequests, r.acksAreUrgent, r.effects.Go, r.sendAcks))
	}
	b.(*batcher[*item]).Add(it, it.hurry)
}

// acksAreUrgent reports whether no acknowledgement waits for others: a receive waits for the credits,
// or the run ends.
func (r *run) acksAreUrgent() bool { return r.hand.waits.Load() > 0 || r.running.Err() != nil }

// hurryAcks sends the pending acknowledgements, which have become urgent.
func (r *run) hurryAcks() {
	r.ackers.Range(func(_, b any) bool {
		b.(*batcher[*item]).look()
		return true
	})
}

func (r *run) sendAcks(list []*item) {
	ds := make([]*tidegate.Delivery, len(list))
	var grace time.Time
	for i, it := range list {
		ds[i] = &it.current
		if it.grace.After(grace) {
			grace = it.grace
		}
	}
	ctx, cancel := r.tryContext(grace)
	errs := r.transport.Ack(ctx, ds)
	cancel()
	r.acked(list, errs)
}

// acked handles the response to the acknowledgements of batch. It may change batch.
func (r *run) acked(batch []*item, errs []error) {
	if len(errs) != len(batch) {
		errs = make([]error, len(batch))
		for i, it := range batch {
			errs[i] = &tidegate.Error{Op: "AckMessage", Subject: it.current.ID, Message: "the transport returned a different number of results than deliveries"}
		}
	}
	done := batch[:0]
	for i, it := range batch {
		if errs[i] != nil {
			r.attempted(it, transport.RetryResult{}, errs[i])
			continue
		}
		it.conclude(transport.RetryResult{}, nil)
		r.observe(it)
		done = append(done, it)
	}
	if len(done) > 0 {
		r.follow(r.hand.removeSettled(time.Now(), done...))
	}
}

// A gatherer hands the items of several goroutines to one function in batches. Create one with
// [newGather].
//
// Wake-ups: an item that waits for a batch is woken by the arrival that completes the batch, by the
// end of a running batch, by Replace, by the hurry of a caller, or by the timer, which is set
// whenever items wait and fewer than limits.Batches batches are running. An item in a batch is
// woken by the end of the batch, also if the function ends its goroutine.
//
// Bound on steps: each arrival, departure, end of a batch, Replace, hurry and timer looks for
// complete batches once, and once more for each batch that it begins. The timer is always set in
// the future, for the first item that waits, so it fires at most once for each item.
type gatherer[T any] struct {
	handle func(items []T, results []error)

	mu      sync.Mutex
	former  former[*gatherEntry[T]]
	batches map[*batch[T]]struct{} // that are handled
	timer   *time.Timer            // for the next batch that is due
}

// A gatherEntry is an item whose goroutine waits for its batch.
type gatherEntry[T any] struct {
	item T
	ctx  context.Context //nolint:containedctx // of the item's goroutine, which waits
	lead chan *batch[T]  // of capacity 1: the batch that this goroutine has to handle
	done chan struct{}   // closed when err is the result
	err  error
}

type batch[T any] struct {
	entries  []*gatherEntry[T]
	replaced bool // another batch has its place; guarded by Gatherer.mu
}

// newGather returns a gatherer. handle handles a batch and sets the result of each item. If handle
// ends the goroutine, the results hold that it has set before.
func newGather[T any](l limits, handle func(items []T, results []error)) *gatherer[T] {
	return &gatherer[T]{handle: handle, former: former[*gatherEntry[T]]{limits: l}, batches: map[*batch[T]]struct{}{}}
}

// Do waits until a batch with the item was handled, and returns the item's result. If ctx ends
// before the item is in a batch, Do returns the cause of that at once. When hurry is closed, no
// batch waits for further items any more.
//
// The goroutine of the first item of a batch handles the batch.
func (g *gatherer[T]) Do(ctx context.Context, hurry <-chan struct{}, item T, size int) error {
	e := &gatherEntry[T]{item: item, ctx: ctx, lead: make(chan *batch[T], 1), done: make(chan struct{})}
	g.change(func(f *former[*gatherEntry[T]]) { f.add(e, size, time.Now()) })
	ended := ctx.Done()
	for {
		select {
		case b := <-e.lead:
			g.run(b)
			return e.err
		case <-e.done:
			return e.err
		case <-ended:
			removed := false
			g.change(func(f *former[*gatherEntry[T]]) { removed = f.remove(e) })
			if removed {
				return context.Cause(ctx)
			}
			ended = nil // it is in a batch
		case <-hurry:
			g.change(func(f *former[*gatherEntry[T]]) { f.hurry = true })
			hurry = nil
		}
	}
}

// Replace lets another batch begin in the place of the running one that has an item with has.
func (g *gatherer[T]) Replace(has func(T) bool) {
	g.change(func(f *former[*gatherEntry[T]]) {
		for b := range g.batches {
			if !b.replaced && slices.ContainsFunc(b.entries, func(e *gatherEntry[T]) bool { return has(e.item) }) {
				b.replaced = true
				f.running--
			}
		}
	})
}

// change changes the former, and begins the batches that may begin then.
func (g *gatherer[T]) change(f func(*former[*gatherEntry[T]])) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.former)
	g.begin()
}

// begin hands the batches that may begin to their first goroutines. Guarded by mu.
func (g *gatherer[T]) begin() {
	for {
		now := time.Now()
		entries, wake := g.former.next(now)
		if entries == nil {
			g.wakeAt(now, wake)
			return
		}
		b := &batch[T]{entries: entries}
		g.batches[b] = struct{}{}
		entries[0].lead <- b // does not wait: an entry gets one batch
	}
}

// wakeAt lets begin be called at t, if t is not zero. Guarded by mu.
func (g *gatherer[T]) wakeAt(now, t time.Time) {
	switch {
	case t.IsZero() && g.timer != nil:
		g.timer.Stop()
	case t.IsZero():
	case g.timer == nil:
		g.timer = time.AfterFunc(t.Sub(now), func() { g.change(func(*former[*gatherEntry[T]]) {}) })
	default:
		g.timer.Reset(t.Sub(now))
	}
}

// run handles a batch without the items whose contexts have ended.
func (g *gatherer[T]) run(b *batch[T]) {
	var live []*gatherEntry[T]
	var items []T
	for _, e := range b.entries {
		if e.ctx.Err() != nil {
			e.err = context.Cause(e.ctx)
			continue
		}
		live, items = append(live, e), append(items, e.item)
	}
	results := make([]error, len(items))
	defer func() {
		for i, e := range live {
			e.err = results[i]
		}
		g.change(func(f *former[*gatherEntry[T]]) {
			delete(g.batches, b)
			if !b.replaced {
				f.running--
			}
		})
		for _, e := range b.entries {
			close(e.done)
		}
	}()
	if len(items) > 0 {
		g.handle(items, results)
	}
}

// limits are the limits of batches, all of them positive but Wait.
type limits struct {
	Items   int           // of one batch
	Bytes   int           // of one batch with more than one item
	Wait    time.Duration // for a fuller batch, from its first item; 0 or less means none
	Batches int           // that are handled at the same time
}

// A former decides which items make the next batch. It has no clock, locks or goroutines.
type former[T comparable] struct {
	limits  limits
	waiting []waiting[T] // in the order of their arrival
	running int          // batches
	hurry   bool         // do not wait for fuller batches
}

type waiting[T comparable] struct {
	item  T
	size  int
	since time.Time
}

func (f *former[T]) add(item T, size int, now time.Time) {
	f.waiting = append(f.waiting, waiting[T]{item, size, now})
}

// remove removes an item that is in no batch yet, and reports whether it was there.
func (f *former[T]) remove(item T) bool {
	i := slices.IndexFunc(f.waiting, func(w waiting[T]) bool { return w.item == item })
	if i < 0 {
		return false
	}
	f.waiting = slices.Delete(f.waiting, i, i+1)
	return true
}

// next returns the batch that begins at now, nil for none. Then wake is the time at which the next
// one is due, zero if there is none before another event.
func (f *former[T]) next(now time.Time) (batch []T, wake time.Time) {
	if len(f.waiting) == 0 || f.running >= f.limits.Batches {
		return nil, wake
	}
	n, bytes := 0, 0
	for n < len(f.waiting) && n < f.limits.Items && (n == 0 || f.waiting[n].size <= f.limits.Bytes-bytes) {
		bytes += f.waiting[n].size
		n++
	}
	full := n == f.limits.Items || n < len(f.waiting) || bytes >= f.limits.Bytes
	if due := f.waiting[0].since.Add(f.limits.Wait); !full && !f.hurry && now.Before(due) {
		return nil, due
	}
	for _, w := range f.waiting[:n] {
		batch = append(batch, w.item)
	}
	f.waiting = slices.Delete(f.waiting, 0, n)
	f.running++
	return batch, wake
}
