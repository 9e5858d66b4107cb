package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/flow"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/policies"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
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
		it, ok := h.ready.Pop(h.gate.State() == killswitch.Probing)
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
	decision verdict.Decision
	took     time.Duration
	failed   bool // because of the message or a dependency
	decided  bool // the handler decided the end of the message, by DeadLetterNow
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
	v := r.decision
	switch {
	case it.lost:
		v = verdict.Decision{Act: verdict.Forget}
	case v.Is(transport.Release): // the run ends: neither a success nor a failure
	default:
		probe := h.gate.State() == killswitch.Probing
		excusable, changed := h.gate.Handled(now, r.failed)
		if excusable && !r.decided {
			v = h.excuse(it, v, probe)
		}
		if changed {
			c = h.gateChanged(now)
		}
	}
	if v.Act != verdict.Ack {
		h.lines.Close(it.line)
	}
	return h.settle(it, v), c
}

// excuse returns the verdict for a delivery whose failure the kill switch excuses. It is v, the
// verdict without the switch, in two cases: the server would count the attempt in any case, or the
// message has no excuse left, because a message that always fails has to reach its last attempt. A
// failed probe is not released, because the next probe would handle it again.
func (h *hand) excuse(it *item, v verdict.Decision, probe bool) verdict.Decision {
	if !it.caps.Verdicts.Has(transport.Snooze) && (!it.caps.Suspend || probe) {
		return v
	}
	delay, ok := h.excuses.Excuse(it.key(), h.opts.KillSwitch.Probe)
	switch {
	case !ok:
		return v
	case it.caps.Verdicts.Has(transport.Snooze):
		return verdict.Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: min(delay, maxInvisibleDuration)}}
	}
	return release
}

// settle begins the settling phase, and reports whether to carry the verdict out now. During an
// extension the verdict has to wait for the response, which has the valid handle.
func (h *hand) settle(it *item, v verdict.Decision) bool {
	if it.unread() {
		h.unread--
	}
	it.phase, it.Decision = settling, v
	h.unschedule(it)
	return !it.renewing || v.Act == verdict.Forget
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

// A phase is the state of a delivery.
type phase uint8

const (
	inLine   phase = iota // behind another message of its message group
	ready                 // waits for a worker
	running               // a handler works on it
	settling              // its verdict is carried out
	gone                  // settled or lost
)

// An item is one delivery in hand, from its arrival until it is settled.
type item struct {
	d       *tidegate.Delivery // as received; it belongs to the handler and is not read after the handler began
	current tidegate.Delivery  // a copy with the valid handle, for settlements
	caps    transport.Capabilities
	source  *source
	choice  policies.Choice   // by the consumer's policies; set before the handler begins
	size    int               // of the body, in bytes
	line    *flow.Line[*item] // of its message group; nil without a group

	// Guarded by hand.mu.
	phase    phase
	lease    flow.Lease
	wake     flow.Entry[*item]       // of hand.leases: the next check by maintainLeases
	renewing bool                    // an extension is under way; a settlement waits for it
	lost     bool                    // the lease is lost
	lostErr  error                   // the server's reason, if known
	cancel   context.CancelCauseFunc // of the handler's context; nil before and after
	stuck    bool                    // another worker replaces its handler
	unsure   bool                    // the response to an extension was lost, so another handle may be valid

	// Owned by the goroutine that carries out the verdict.
	verdict.State
	disposition Disposition
	delay       time.Duration // until the next delivery
	settleErr   error
	duration    time.Duration   // of the handler
	batchTook   atomic.Int64    // set for a batch handler by other goroutines
	ctx         deliveryContext // of the handler
	result      result          // of the handler
	cancelled   bool            // the handler's context ended with the run
	grace       time.Time       // end of the settlement if the handler returned after the shutdown time; otherwise zero
}

func newItem(d *tidegate.Delivery, s *source, caps transport.Capabilities, l flow.Lease) *item {
	it := &item{d: d, current: *d, caps: caps, source: s, size: len(d.Body), lease: l}
	it.wake.Value = it
	return it
}

// key identifies the message of the delivery.
func (it *item) key() killswitch.Key {
	return killswitch.Key{Topic: it.current.Topic, ID: it.current.ID}
}

// unread reports whether no handler has started with the delivery.
func (it *item) unread() bool { return it.phase == inLine || it.phase == ready }

// consumed reports whether the group will not receive the settled message again from this topic.
func (it *item) consumed() bool {
	switch it.disposition {
	case Acked, DeadLettered, Reconsumed, Discarded:
		return true
	}
	return false
}

// loss returns the cause of the handler's context after the loss of the lease.
func (it *item) loss() error {
	if it.lostErr != nil {
		return &lostError{it.lostErr}
	}
	return ErrLeaseLost
}

// A lostError is ErrLeaseLost with the server's reason.
type lostError struct{ reason error }

func (e *lostError) Error() string   { return ErrLeaseLost.Error() + ": " + e.reason.Error() }
func (e *lostError) Unwrap() []error { return []error{ErrLeaseLost, e.reason} }

const (
	// maxUnanswered is the longest wait after a receive to which no server responded.
	maxUnanswered = 5 * time.Second

	// minUnanswered is the shortest one, although a server responds again.
	minUnanswered = time.Second
)

// receiveWait returns the wait after failures+1 failed receives, the last of them with err.
func receiveWait(p backoff.Policy, failures int, err error) time.Duration {
	wait := max(p.Delay(failures), verdict.PushBack(err))
	if verdict.Unanswered(err) {
		wait = min(wait, maxUnanswered)
	}
	return wait
}

// A recovery waits for the end of one outage. Replace it after a success.
type recovery struct {
	// pinged is true after a ping succeeded. If another receive fails after that, pings do not show
	// the state of the server that fails: it may be one of several behind the transport.
	pinged bool
}

// await waits before a receive is repeated that failed with err. If no server responded to the
// receive, the wait ends early when one responds to a ping, but only once in an outage. It returns
// an error if ctx ends first.
func (r *recovery) await(ctx context.Context, t transport.Receiver, wait time.Duration, err error) error {
	pinger, ok := t.(transport.Pinger)
	if !ok || r.pinged || !verdict.Unanswered(err) || wait <= minUnanswered {
		return backoff.Sleep(ctx, wait)
	}
	end := time.Now().Add(wait)
	if err := backoff.Sleep(ctx, minUnanswered); err != nil {
		return err
	}
	pinging, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if r.pinged = pinger.Ping(pinging) == nil; r.pinged {
		return nil
	}
	return backoff.Sleep(ctx, time.Until(end))
}
