package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// room counts what a queue has in hand.
type room struct {
	mu     sync.Mutex // never held while waiting
	inHand int
	freed  chan struct{} // a token after something was freed
}

func (r *room) take(n int) {
	r.mu.Lock()
	r.inHand += n
	r.mu.Unlock()
}

func (r *room) free() {
	r.mu.Lock()
	r.inHand--
	r.mu.Unlock()
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// wait returns how many more the queue may have, at least one, and 0 if ctx ends.
func (r *room) wait(ctx context.Context, share func() int64) int {
	for ctx.Err() == nil {
		r.mu.Lock()
		n := int(share()) - r.inHand
		r.mu.Unlock()
		if n > 0 {
			return n
		}
		select {
		case <-r.freed:
		case <-ctx.Done():
		}
	}
	return 0
}

// receive is the loop of one queue.
func (r *run) receive(ctx context.Context, queue int) {
	rm := &room{freed: make(chan struct{}, 1)}
	failures := 0
	attemptID := ""
	for {
		n := rm.wait(ctx, r.share.Load)
		if n == 0 {
			return
		}
		s := *r.settings.Load()
		if s.FIFO && attemptID == "" {
			attemptID = tidegate.NewMessageID()
		}
		start := time.Now()
		ds, err := r.transport.Receive(ctx, r.request(s, queue, n, attemptID))
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			wait := r.failed("receiving failed", err, failures)
			failures++
			if errors.Is(err, transport.ErrUnreadable) {
				attemptID = "" // or nothing else would come of this queue until that answer's invisible time ends
			}
			if backoff.Sleep(ctx, wait) != nil {
				return
			}
			continue // else with the same attempt ID: perhaps only the answer was lost
		}
		failures, attemptID = 0, ""
		if len(ds) == 0 {
			if rest := minPoll - time.Since(start); rest > 0 && backoff.Sleep(ctx, rest) != nil {
				return
			}
			continue
		}
		r.dispatch(rm, ds, s.FIFO)
	}
}

func (r *run) request(s transport.ConsumerSettings, queue, room int, attemptID string) transport.ReceiveRequest {
	wait := r.opts.LongPolling
	if wait == 0 {
		wait = s.LongPolling
	}
	if wait <= 0 {
		wait = DefaultLongPolling
	}
	batch := s.ReceiveBatchSize
	if batch <= 0 {
		batch = maxBatch
	}
	if s.FIFO && !r.transport.Capabilities().Suspend {
		// When a message fails, those received behind it are given back, and on
		// a real RocketMQ each time costs them an attempt: they would become
		// dead letters without ever having been handled.
		batch = 1
	}
	return transport.ReceiveRequest{
		Group: r.sub.Group, Topic: r.sub.Topic, Queue: queue, Push: true, Filter: r.sub.Filter,
		Max: min(room, batch), InvisibleDuration: r.opts.InvisibleDuration, Wait: wait, AttemptID: attemptID,
	}
}

// dispatch gives each delivery an owner. All get their turns before any of
// them starts, or a quick failure of the first would not be seen by the last.
func (r *run) dispatch(rm *room, ds []*tidegate.Delivery, fifo bool) {
	now := time.Now()
	turns := make([]*turn, len(ds))
	if fifo {
		turns = r.lines.join(ds)
	}
	rm.take(len(ds))
	for i, d := range ds {
		h := r.hold(d, turns[i], now)
		r.work.Go(func() {
			defer rm.free()
			r.deliver(h)
		})
	}
}

func pushBack(err error) time.Duration {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
