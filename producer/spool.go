package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/producer/internal/retry"
)

// A Spool stores messages on a local disk while no server accepts them. Package producer/spool
// implements it.
type Spool interface {
	// PutBatch stores messages in their order and returns an error for each. A message
	// without an error survives a crash of the process and of the machine. The producer
	// makes one call at a time.
	PutBatch(ctx context.Context, msgs []*tidegate.Message) []error

	// Holds reports whether the spool has messages of the topic whose OrderKey is group: the
	// messages of a message group or of a lite topic. The producer calls it under a lock, so it must
	// not block. It is false for an empty group.
	Holds(topic, group string) bool

	// Drain calls send with messages of the spool until ctx ends, and then returns nil. A message
	// leaves the spool if send returned nil or a fault of the message for it. The messages of a
	// message group or lite topic are sent in order, one in each call of send.
	Drain(ctx context.Context, send func(ctx context.Context, msgs []*tidegate.Message) []error) error
}

// A spooler moves messages to Options.Spool, and sends the messages of the spool.
//
// Wake-ups: spoolWriter has the messages that wait for a write. The messages in the spool are sent
// by one goroutine, which runs until the producer ends; the spool wakes it. Bound on steps: after a
// failure of Drain the goroutine waits for a second or more.
type spooler struct {
	spoolWriter

	p       *Producer
	stop    context.CancelFunc // ends the drain after its batch
	drained chan struct{}      // closed after the end of the drain
}

// newSpooler returns the spooler of a producer. The caller must call startDrain.
func newSpooler(p *Producer) *spooler {
	s := &spooler{p: p, drained: make(chan struct{})}
	s.spoolWriter = spoolWriter{spool: p.opts.Spool, start: p.ledger.Running.Go, written: p.written, report: p.reportPanic}
	return s
}

func (s *spooler) startDrain() {
	ctx, stop := context.WithCancel(s.p.life)
	s.stop = stop
	go func() {
		defer close(s.drained)
		s.drain(ctx)
	}()
}

// drainTime bounds the time of a batch from the spool.
const drainTime = 30 * time.Second

// written stores the results of messages that were written to the spool.
func (p *Producer) written(items []*item, errs []error) {
	for i, it := range items {
		it.topic.spooled(it, errs[i])
	}
	p.complete(items)
}

// spooled stores the result of a message that was written to the spool.
func (t *topic) spooled(it *item, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if group := it.Message.OrderKey(); group != "" {
		if t.spooling[group]--; t.spooling[group] == 0 {
			delete(t.spooling, group)
		}
	}
	if err == nil {
		it.state, it.err = spooled, nil
		it.receipt = tidegate.Receipt{
			MessageID: it.Message.ID, Topic: it.Message.Topic, Queue: -1, Offset: -1, Spooled: true, Attempts: it.history.Attempts,
		}
		return
	}
	cause := fmt.Errorf("the spool rejected the message: %w", err)
	if it.err.Cause != nil {
		cause = fmt.Errorf("%w; %w", it.err.Cause, cause)
	}
	it.state, it.err = failedState(it.err), it.fail(StopSpool, cause)
}

// holds reports whether the spool has messages of a message group. If the spool panics, it may have
// some: the message then goes behind them.
func (s *spooler) holds(topic, group string) (held bool) {
	return !guard.Call("Options.Spool", s.p.reportPanic, func() { held = s.spool.Holds(topic, group) }) || held
}

// drainGrace bounds the time that Shutdown waits for requests with messages of the spool. Without a
// response the messages stay in the spool.
const drainGrace = time.Second

// wait waits for the end of the drain. It returns false after drainGrace, or if ctx ends first.
func (s *spooler) wait(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, drainGrace)
	defer cancel()
	select {
	case <-s.drained:
		return true
	case <-ctx.Done():
		return false
	}
}

// drain sends the messages of the spool until ctx ends.
func (s *spooler) drain(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		err := guard.Error("Options.Spool", s.p.reportPanic, func() error { return s.spool.Drain(ctx, s.send) })
		if ctx.Err() != nil {
			return
		}
		s.p.events.Note(slog.LevelError, "draining the spool failed; retrying", nil, []slog.Attr{slog.Any("error", err)})
		_ = backoff.Sleep(ctx, max(time.Second, retry.DefaultPacing.Delay(failures))) // the loop checks ctx
	}
}

// send sends messages of the spool through the queues of their topics. They are retried like
// others, but do not move to the spool again.
func (s *spooler) send(_ context.Context, msgs []*tidegate.Message) []error {
	p := s.p
	// The deadline keeps a throttled message from blocking the rest of the spool.
	ctx, cancel := context.WithTimeout(p.life, max(drainTime, p.opts.AttemptTimeout))
	defer cancel()
	errs := make([]error, len(msgs))
	items := make([]*item, len(msgs))
	queued := map[*topic][]*item{}
	for i, msg := range msgs {
		it := newItem(ctx, msg)
		it.origin, it.wake, it.Size = fromSpool, make(chan struct{}), plan.SizeOf(msg)
		it.topic = p.use(msg.Topic)
		it.limits = p.limits(p.settings(it.topic))
		if !p.ledger.Adopt(it, &it.entry) {
			it.topic.release()
			errs[i] = errProducerClosed
			continue
		}
		items[i] = it
		queued[it.topic] = append(queued[it.topic], it)
	}
	for t, list := range queued {
		t.submit(nil, list...)
	}
	for i, it := range items {
		if it == nil {
			continue
		}
		if it.await(); it.err != nil {
			errs[i] = it.err
		}
	}
	return errs
}

var errBehind = errors.New("older messages of its message group or lite topic, or of its topic, are in the spool")

// diverts reports whether a new message goes to the spool without an attempt: its message group has
// older messages in the spool, or the last messages of the topic went there after failed attempts.
// The producer has a spooler. The lock is held.
func (t *topic) diverts(it *item) bool {
	if it.origin == fromSpool {
		return false
	}
	group := it.Message.OrderKey()
	if group == "" {
		return it.full || t.down
	}
	return t.spooling[group] > 0 || t.p.spooler.holds(t.name, group) || t.down && !t.queue.Has(group)
}

// spool queues a message that left the topic's queue for a write to the spool. The lock is held.
func (t *topic) spool(it *item, err *SendError) {
	it.state, it.err = spooling, err
	if group := it.Message.OrderKey(); group != "" {
		if t.spooling == nil {
			t.spooling = make(map[string]int)
		}
		t.spooling[group]++
	}
	switch err.Reason {
	case StopExhausted, StopThrottled, StopPushedBack, StopDeadline, StopBudget:
		t.down = t.down || err.Last != nil
	case StopSpool:
		t.down = t.down || err.Cause == errRevoked //nolint:errorlint // the producer's own value
	default:
	}
	t.p.spooler.add(it)
}

// maxSpooled bounds the messages of one write to the spool.
const maxSpooled = 1000

// A spoolWriter writes messages to Options.Spool, in the order of the calls of add. Messages that
// arrive during a write share the next one.
//
// Wake-ups: a goroutine runs while a message waits for a write. add starts it, and a PutBatch that
// ends it starts the next one. Bound on steps: each write has at least one message, and maxSpooled
// of them if so many wait.
type spoolWriter struct {
	spool   Spool
	start   func(func())           // starts a goroutine
	written func([]*item, []error) // is called once for each message; no lock is held
	report  guard.Report           // of a panic of spool

	mu      sync.Mutex
	queue   []*item // guarded by mu
	running bool    // guarded by mu
}

// add queues a message. The lock of its topic is held, so that the order of a message group in the
// queue of its topic is its order in the spool.
func (w *spoolWriter) add(it *item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, it)
	if !w.running {
		w.running = true
		w.start(w.run) // Close waits for the message, so it cannot wait for Running yet
	}
}

// run writes the queued messages until there are none.
func (w *spoolWriter) run() {
	for items := w.next(); len(items) > 0; items = w.next() {
		w.write(items)
	}
}

// next takes the messages of the next write from the queue. If there are none, the goroutine ends.
func (w *spoolWriter) next() []*item {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), maxSpooled)
	items := w.queue[:n:n]
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
	w.running = n > 0
	return items
}

var errPutEnded = errors.New("PutBatch ended its goroutine")

// write writes messages. If PutBatch ends the goroutine, these messages fail, and another goroutine
// writes the later ones.
func (w *spoolWriter) write(items []*item) {
	msgs := make([]*tidegate.Message, len(items))
	for i, it := range items {
		msgs[i] = it.Message
	}
	returned := false
	defer func() {
		if !returned {
			w.start(w.run)
			w.written(items, sameError(len(items), errPutEnded))
		}
	}()
	var errs []error
	err := guard.Error("Options.Spool", w.report, func() error {
		errs = w.spool.PutBatch(context.Background(), msgs) // the end of the callers' ctxs does not interrupt a write
		return nil
	})
	if returned = true; err != nil {
		errs = sameError(len(items), err)
	}
	if len(errs) != len(items) {
		errs = sameError(len(items), fmt.Errorf("the spool returned %d errors for %d messages", len(errs), len(items)))
	}
	w.written(items, errs)
}

func sameError(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
