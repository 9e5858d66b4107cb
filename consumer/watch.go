package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
)

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
	case verdict.Code(x.err) == tidegate.CodeIllegalInvisibleTime: // the delivery has reached the server's maximum
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
