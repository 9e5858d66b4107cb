package consumer

import (
	"context"
	"time"
)

// maintainLeases extends the leases of all deliveries in hand and repeats failed settlements, until
// ctx ends.
func (r *run) maintainLeases(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-r.hand.kicked:
		case <-ctx.Done():
			return
		}
		tasks, c, next := r.hand.due(time.Now())
		r.follow(c)
		for _, t := range tasks {
			r.carryOutTask(t)
		}
		timer.Reset(time.Until(next))
	}
}

func (r *run) carryOutTask(t task) {
	it := t.it
	switch t.do {
	case extendLease:
		r.renewers.Do(func() { r.extend(it) })
	case cancelHandler:
		t.cancel(it.loss())
	case endLost:
		r.settlers.Do(func() { r.carryOut(it) }) // calls functions of the program
	case settleAgain:
		r.carryOut(it)
	}
}

// extend makes one attempt to extend a lease.
func (r *run) extend(it *item) {
	sent, until := r.hand.leaseOf(it)
	inv, timeout := r.hand.invisible(sent, until)
	ctx, cancel := r.extendContext(timeout)
	handle, err := r.change(ctx, it, inv)
	cancel()
	if err != nil {
		r.warn("extending the invisible time failed", it, err)
	}
	t, lost, carryOut := r.hand.extended(it, extension{sent: sent, now: time.Now(), inv: inv, handle: handle, err: err})
	switch {
	case carryOut:
		r.carryOut(it)
	case lost:
		r.carryOutTask(t)
	}
}

// extendContext returns the context of one attempt to extend a lease.
func (r *run) extendContext(timeout time.Duration) (context.Context, context.CancelFunc) {
	if r.late() { // a handler is still running
		return context.WithTimeout(r.detached, min(timeout, lastTry))
	}
	return context.WithTimeout(r.settling, timeout)
}

func (h *hand) leaseOf(it *item) (now, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now(), it.lease.Until
}
