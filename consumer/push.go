package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// A Transport is what a push consumer needs of a transport.
type Transport interface {
	transport.Receiver
	transport.Settler
	transport.Configurer
}

// A Push consumer receives messages and hands them to a handler. Make one with
// [NewPush]. It has no state of its own between runs and needs no closing.
type Push struct {
	transport Transport
	sub       Subscription
	handler   Handler
	opts      PushOptions
}

// NewPush returns a consumer of sub that receives through t and calls handler.
// It does nothing before [Push.Run]. The error joins all faults of the arguments.
func NewPush(t Transport, sub Subscription, handler Handler, opts PushOptions) (*Push, error) {
	var f faults
	if t == nil {
		f.add("transport", "it is nil; give the one to receive through")
	}
	if handler == nil {
		f.add("handler", "it is nil; give the function that consumes a delivery")
	}
	if err := joinFaults(f, sub.validate(), opts.validate()); err != nil {
		return nil, err
	}
	return &Push{transport: t, sub: sub, handler: handler, opts: opts.withDefaults()}, nil
}

// refresh is how often the server's settings and queues are read again.
const refresh = 10 * time.Second

// minPoll is the least time between two receives of a queue that bring
// nothing, where a server does not wait as it was asked to.
const minPoll = 100 * time.Millisecond

// A run is one call of Run.
type run struct {
	*Push
	log  *slog.Logger
	stop <-chan struct{} // closed when no more deliveries are to be started
	// detached is Run's ctx without its end, for what must be finished.
	detached context.Context //nolint:containedctx // it lives as long as the run
	// handlers is the parent of all handlers' contexts; it ends with ErrShutdown.
	handlers context.Context         //nolint:containedctx // it lives as long as the run
	fatal    context.CancelCauseFunc // ends the run with a refusal

	slots    chan struct{} // a token for each handler that may start
	lines    lines
	rules    atomic.Pointer[rules]
	settings atomic.Pointer[transport.ConsumerSettings]
	share    atomic.Int64   // deliveries that one queue may have in hand
	work     sync.WaitGroup // deliveries and handlers
}

// Run consumes until ctx ends and then returns nil: it stops receiving, gives
// back what no handler has started on, waits for the handlers, and settles
// what they return. Handlers that take longer than ShutdownTimeout see their
// context end; Run waits for them nevertheless, and so a handler that ignores
// its context is a blocked call of Run and not a leak.
//
// A failure to receive is waited out and retried, also that of a topic or
// group that does not exist yet. Run returns an error, after the same orderly
// end, if the server refuses the consumer for good (bad request, no
// permission) or the transport was closed, before ctx ended.
//
// Run may be called again after it has returned, and several times at once:
// each call is a consumer of its own.
func (p *Push) Run(ctx context.Context) error {
	rctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	detached := context.WithoutCancel(ctx)
	handlers, endHandlers := context.WithCancelCause(detached)
	defer endHandlers(nil)
	r := &run{
		Push: p, log: p.opts.Logger, stop: rctx.Done(), detached: detached, handlers: handlers, fatal: end,
		slots: make(chan struct{}, p.opts.Concurrency),
	}
	for range p.opts.Concurrency {
		r.slots <- struct{}{}
	}
	r.receiveAll(rctx)

	done := make(chan struct{})
	go func() {
		r.work.Wait()
		close(done)
	}()
	timeout := time.NewTimer(p.opts.ShutdownTimeout)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
		endHandlers(ErrShutdown)
		<-done
	}
	if r, ok := errors.AsType[*refusal](context.Cause(rctx)); ok { // and not the end of ctx, which may have come since
		return fmt.Errorf("consume %q for %q: %w", p.sub.Topic, p.sub.Group, r.error)
	}
	return nil
}

// A refusal is the cause of a run's end that is not the end of Run's ctx.
type refusal struct{ error }

// receiveAll keeps one receiving loop for each queue until ctx ends, and
// returns when all have.
func (r *run) receiveAll(ctx context.Context) {
	loops := map[int]context.CancelFunc{}
	var receiving sync.WaitGroup
	defer receiving.Wait()
	failures := 0
	for ctx.Err() == nil {
		wait := refresh
		queues, err := r.refresh(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
		case r.rules.Load() == nil:
			// Without the settings it is not known whether order matters.
			wait = r.failed("reading the group's settings failed", err, failures)
			failures++
		default:
			// What was read before holds. The loops see for themselves what matters.
			r.log.Debug("reading the group's settings again failed",
				"topic", r.sub.Topic, "group", r.sub.Group, "error", err)
		}
		if queues != nil {
			r.share.Store(int64(r.opts.Concurrency+len(queues)-1) / int64(max(1, len(queues))))
			keep := map[int]bool{}
			for _, q := range queues {
				keep[q] = true
				if loops[q] == nil {
					lctx, cancel := context.WithCancel(ctx)
					loops[q] = cancel
					receiving.Go(func() { r.receive(lctx, q) })
				}
			}
			for q, cancel := range loops {
				if !keep[q] {
					cancel()
					delete(loops, q)
				}
			}
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// refresh reads the server's settings and the queues to receive from; nil
// queues if they are not known.
func (r *run) refresh(ctx context.Context) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, refresh)
	defer cancel()
	s, err := r.transport.ConsumerSettings(ctx, r.sub.Group, r.sub.Topic)
	if err != nil {
		return nil, err
	}
	queues, err := r.transport.Queues(ctx, r.sub.Group, r.sub.Topic)
	if err != nil {
		return nil, err
	}
	r.settings.Store(&s)
	r.rules.Store(new(makeRules(r.sub.Retry, s, r.transport.Capabilities())))
	if queues == nil {
		queues = []int{} // none is an answer
	}
	return queues, nil
}

func (r *run) currentRules() rules { return *r.rules.Load() }

// failed logs a failure, ends the run if it is for good, and otherwise returns
// how long to wait.
func (r *run) failed(what string, err error, failures int) time.Duration {
	if fatal(err) {
		r.fatal(&refusal{err})
		return 0
	}
	wait := r.opts.ReceiveBackoff.Delay(failures)
	if d := pushBack(err); d > wait {
		wait = d
	}
	r.log.Warn(what, "topic", r.sub.Topic, "group", r.sub.Group, "error", err, "again_in", wait)
	return wait
}
