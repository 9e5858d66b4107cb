package broker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A lifetime is the time between Open and Close, and the calls under way.
type lifetime struct {
	life context.Context //nolint:containedctx // the broker's own life, not a request's: it ends, with cause ErrClosed, when Close begins
	stop context.CancelCauseFunc

	store *store.Store // abandoned after a panic

	lifeMu    sync.RWMutex
	closing   bool           // guarded by lifeMu
	operating sync.WaitGroup // the calls and timers under way, not the steps of maintenance
	closed    chan struct{}
	closeErr  error // valid once closed is closed
}

func (l *lifetime) open(s *store.Store) {
	// The broker's own life, not a request's.
	l.life, l.stop = context.WithCancelCause(context.Background())
	l.closed, l.store = make(chan struct{}), s
}

// logRecovered logs the contents of a directory that was not closed in order.
func (b *Broker) logRecovered(began time.Time) {
	var stored, delayed, half, inflight, waiting int64
	stats := serve(b).Stats()
	for i := range stats.Topics {
		t := &stats.Topics[i]
		stored, delayed = stored+t.Stored.Messages, delayed+t.Delayed.Messages
		if t.Transactions != nil {
			half += t.Transactions.HalfMessages
		}
	}
	for i := range stats.Subscriptions {
		inflight, waiting = inflight+stats.Subscriptions[i].Inflight, waiting+stats.Subscriptions[i].WaitingRetry
	}
	b.logger.Warn("the last process did not close the data directory; its contents are recovered", "directory", b.opts.Dir,
		"topics", len(stats.Topics), "stored_messages", stored, "delayed_messages", delayed, "half_messages", half,
		"deliveries_in_flight", inflight, "retries_waiting", waiting, "took", time.Since(began).Round(time.Millisecond))
}

// Begin counts a call as under way, and returns false if the broker is closing.
func (l *lifetime) Begin() bool {
	l.lifeMu.RLock()
	defer l.lifeMu.RUnlock()
	if l.closing {
		return false
	}
	l.operating.Add(1)
	return true
}

// End ends the call that Begin counted. Callers defer it. A panic continues in the caller, which
// can survive it, as servers do. The state in memory is unknown after a panic, so End breaks the
// broker first: the broker rejects all calls, and a restart reads the state from disk.
func (l *lifetime) End() {
	p := recover()
	if p != nil {
		l.Abandon(p)
	}
	l.operating.Done()
	if p != nil {
		panic(p)
	}
}

// Abandon breaks the broker after a panic, in End or in a step of maintenance.
func (l *lifetime) Abandon(panicked any) {
	l.store.Abandon(fmt.Errorf("a panic in the broker: %v", panicked))
}

// beginWith is Begin for a call with a ctx. The error is the cause of a ctx that has ended, or that
// the broker is closing. Without an error the caller has to call End.
func (l *lifetime) beginWith(ctx context.Context) (end func(), err error) {
	if !l.Begin() {
		return nil, refusal.Closed()
	}
	if ctx.Err() != nil {
		l.End()
		return nil, &tidegate.Error{Err: context.Cause(ctx)}
	}
	return l.End, nil
}

// beginClosing ends Begin, and reports whether this is the first call.
func (l *lifetime) beginClosing() (first bool) {
	l.lifeMu.Lock()
	defer l.lifeMu.Unlock()
	first = !l.closing
	l.closing = true
	return first
}

func (l *lifetime) isClosing() bool {
	l.lifeMu.RLock()
	defer l.lifeMu.RUnlock()
	return l.closing
}
