package consumer

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/consumer/internal/gate"
)

// makeReady makes a delivery available to the handlers.
func (h *hand) makeReady(it *item) {
	it.phase = ready
	h.ready.Push(it.topicNumber(), it.current.Attempt > 1 || h.excuses.Count(it.key()) > 0, it)
	if h.idle > 0 {
		h.work.Signal()
	}
}

// hire returns the number of workers to start for the ready deliveries, and counts them.
func (h *hand) hire() int {
	n := min(h.ready.Len()-h.idle, h.opts.Concurrency-h.workers)
	if n <= 0 {
		return 0
	}
	h.workers += n
	return n
}

// take waits for a delivery and returns it with its handler's cancel function, or nil if there will
// be no more.
func (h *hand) take(cancel context.CancelCauseFunc) *item {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if it := h.next(); it != nil {
			it.phase, it.cancel = running, cancel
			h.unread--
			h.running++
			return it
		}
		if h.closed && h.unread == 0 {
			h.workers--
			h.work.Broadcast()
			return nil
		}
		h.idle++
		h.work.Wait()
		h.idle--
	}
}

// next returns the next delivery to handle, or nil if there is none or no handler may begin. A
// message that has not failed before is the better probe of the kill switch.
func (h *hand) next() *item {
	if h.running >= h.gate.Limit(h.opts.Concurrency) {
		return nil
	}
	for {
		it, ok := h.ready.Pop(h.gate.State() == gate.Probing)
		if !ok || it.phase == ready { // otherwise it was lost or released
			return it
		}
	}
}

// leave removes a worker that ends during its work, and returns the number of workers to start.
func (h *hand) leave() (hire int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.workers--
	h.work.Signal() // the delivery that the worker would have taken
	return h.hire()
}

// A handled is a delivery whose handler has returned.
type handled struct {
	verdict decision.Verdict
	took    time.Duration
	failed  bool // because of the message or a dependency
	decided bool // the handler decided the end of the message, by DeadLetterNow
}

// returned ends the running phase of a delivery with its verdict, and reports whether to carry the
// verdict out now. If the lease is lost, it removes the delivery instead. c has the actions after a
// trip of the kill switch.
func (h *hand) returned(it *item, r handled, now time.Time) (carryOut bool, c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	it.cancel = nil
	if it.stuck {
		h.stuck--
	} else {
		h.running--
	}
	h.credits.Handled(r.took)
	v := r.verdict
	switch {
	case it.lost:
		v = decision.Verdict{Action: decision.Forget}
	case v.Action == decision.GiveBack: // the run ends: neither a success nor a failure
	default:
		probe := h.gate.State() == gate.Probing
		excusable, changed := h.gate.Handled(now, r.failed)
		if excusable && !r.decided {
			v = h.excuse(it, v, probe)
		}
		if changed {
			c = h.gateChanged(now)
		}
	}
	if v.Action != decision.Ack {
		h.lines.Close(it.line)
	}
	return h.settle(it, v), c
}

// excuse returns the verdict for a delivery whose failure the kill switch excuses. It is v, the
// verdict without the switch, in two cases: the server would count the attempt in any case, or the
// message has no excuse left, because a message that always fails has to reach its last attempt. A
// failed probe is not released, because the next probe would handle it again.
func (h *hand) excuse(it *item, v decision.Verdict, probe bool) decision.Verdict {
	if !it.caps.Snooze && (!it.caps.Suspend || probe) {
		return v
	}
	delay, ok := h.excuses.Excuse(it.key(), h.opts.KillSwitch.Probe)
	switch {
	case !ok:
		return v
	case it.caps.Snooze:
		return decision.Verdict{Action: decision.SnoozeFor, Delay: min(delay, maxInvisibleDuration)}
	}
	return release
}

// settle begins the settling phase, and reports whether to carry the verdict out now. During an
// extension the verdict has to wait for the response, which has the valid handle.
func (h *hand) settle(it *item, v decision.Verdict) bool {
	if it.unread() {
		h.unread--
	}
	it.phase, it.Verdict = settling, v
	h.unschedule(it)
	return !it.renewing || v.Action == decision.Forget
}

// removeSettled ends deliveries that are settled.
func (h *hand) removeSettled(now time.Time, items ...*item) (c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := false
	for _, it := range items {
		consumed := it.consumed()
		next, behind := h.lines.Leave(it.line, it, consumed)
		it.line = nil
		if next != nil && next.phase == inLine {
			h.makeReady(next)
		}
		for _, b := range behind {
			b.line = nil
			if b.unread() && h.settle(b, release) {
				c.release = append(c.release, b)
			}
		}
		h.unschedule(it)
		it.phase = gone
		if consumed {
			h.excuses.Forget(it.key())
		}
		if it.disposition == Retried && !it.caps.Suspend && !h.stopped {
			h.reminders.Retry(now.Add(it.delay), it.source)
			if at := h.reminders[0].At; at.Before(h.armed) {
				h.kick(at)
			}
		}
		h.credits.Free(it.size)
		it.count(-1)
		if h.stopped {
			h.report.count(it)
		}
		if it.disposition == DeadLettered {
			changed = h.gate.DeadLettered(now) || changed
		}
	}
	if changed {
		c.add(h.gateChanged(now))
	}
	h.offer()
	h.checkEmpty()
	c.hire += h.hire()
	return c
}

func (h *hand) checkEmpty() {
	if h.closed && h.credits.Messages() == 0 {
		select {
		case <-h.empty:
		default:
			close(h.empty)
		}
	}
	if h.closed && h.unread == 0 {
		h.work.Broadcast()
	}
}
