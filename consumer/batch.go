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
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
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
// [Snooze](0) for messages that the handler did not process: on servers with
// [transport.Capabilities].Snooze they are delivered again without spending an attempt. The
// BatchResult may be wrapped.
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
