package consumer

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/flow"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

// hand has the deliveries of a run from their arrival to their settlement, and decides the next
// step of each. It calls neither the transport nor the program. Only take and reserve wait.
//
// Its lock is never held together with another one of this package.
//
// Wake-ups:
//   - a delivery in a line waits for removeSettled of the delivery before it;
//   - a ready delivery is taken by an idle worker, which makeReady signals, by a new worker, which
//     hire counts, or by a worker whose handler returns; a change of the gate wakes all workers;
//   - a delivery without a handler or a settlement attempt under way has an entry in leases, or
//     waits for extended; maintainLeases sleeps until the first entry, the gate's Wake or the first
//     reminder, and kick wakes it for an earlier one;
//   - a receive that waits for credits gets them from offer, which runs after each arrival,
//     settlement, failed receive, replaced worker, change of the gate and removal of a queue;
//   - a queue with a watch reserves nothing. It waits for the report of the server, for the end of
//     its receive (poll.cancel), which a change of the gate, the removal of the queue and the stop
//     call, and for the time rewatch.
//
// Bound on steps: maintainLeases checks once for each kick and each due time. Each due entry starts
// an extension, which flow.Lease bounds, or a settlement attempt, which verdict.State bounds,
// or ends the lease. Each retry has at most two reminders. auth.Gate bounds its changes. A report
// causes one receive; after maxEmpty receives without a message they are minPoll apart.
type hand struct {
	opts   *PushOptions
	mu     sync.Mutex
	work   waker         // workers wait for deliveries; its lock is mu
	kicked chan struct{} // of capacity 1: wakes maintainLeases

	credits   flow.Credits
	sources   int    // queues of all topics
	bids      []*bid // receives that wait for credits
	lastGrant int    // the number of the last grant
	ready     flow.Lanes[*item]
	lines     flow.Lines[*item]
	leases    flow.Schedule[*item]
	armed     time.Time // next check by maintainLeases; zero before the first one
	renewals  flow.RenewTime

	unread    int // in a line or ready
	running   int
	stuck     int // replaced handlers
	workers   int
	idle      int // waiting workers
	gate      *killswitch.Gate
	excuses   killswitch.Excuses
	polls     map[*poll]struct{} // receives under way
	reminders flow.Reminders[*source]
	stopped   bool // release unread deliveries if that costs no attempt
	leaving   bool // release all unread deliveries
	closed    bool // no further arrivals
	empty     chan struct{}
	report    StopReport
}

func newHand(o *PushOptions) *hand {
	h := &hand{
		opts: o, kicked: make(chan struct{}, 1), lines: flow.Lines[*item]{}, polls: map[*poll]struct{}{}, empty: make(chan struct{}),
		credits: flow.New(o.Concurrency, max(o.MaxBuffered, 0), o.MaxBytes),
		gate:    o.KillSwitch.gate(),
	}
	h.work = sync.NewCond(&h.mu)
	return h
}

// A waker is a [sync.Cond]; the model of hand counts the workers that it wakes.
type waker interface {
	Wait()
	Signal()
	Broadcast()
}

// An arrival is a response to a receive.
type arrival struct {
	list      []*tidegate.Delivery
	caps      func(endpoint string) transport.Capabilities
	source    *source
	grant     flow.Grant
	sent      time.Time
	invisible time.Duration // the requested one
	fifo      bool
}

// arrive adds deliveries.
func (h *hand) arrive(a arrival, now time.Time) (c change) {
	items := make([]*item, len(a.list))
	var caps transport.Capabilities
	for i, d := range a.list {
		if i == 0 || d.Endpoint != a.list[i-1].Endpoint {
			caps = a.caps(d.Endpoint)
		}
		left := a.invisible
		if !d.InvisibleUntil.IsZero() {
			left = min(left, d.InvisibleUntil.Sub(now))
		}
		items[i] = newItem(d, a.source, caps, flow.First(a.sent, now, left, h.opts.MaxExtension))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credits.Refund(a.grant)
	if a.source != nil {
		a.source.underWay--
		if len(a.list) > 0 {
			a.source.endpoint = a.list[len(a.list)-1].Endpoint
		}
	}
	if h.excuses.Len() > 0 && !a.fifo { // the best probe first
		slices.SortStableFunc(items, func(a, b *item) int { return cmp.Compare(h.excuses.Count(a.key()), h.excuses.Count(b.key())) })
	}
	for _, it := range items {
		h.credits.Take(it.size)
		it.count(1)
		h.unread++
		h.schedule(it, it.lease.Renewal(now, rand.Float64()))
		if !a.fifo || h.join(it) {
			h.makeReady(it)
		}
	}
	for _, it := range items {
		if it.unread() && h.unwanted(it) {
			c.release = append(c.release, h.drop(it, release)...)
		}
	}
	h.offer()
	c.hire = h.hire()
	return c
}

// join adds a delivery of a FIFO group to its line, and reports whether it is the first in the
// line.
func (h *hand) join(it *item) (first bool) {
	it.line, first = h.lines.Join(flow.Key{Topic: it.topicNumber(), Group: it.current.MessageGroup}, it)
	return first
}

// unwanted reports whether an unread delivery should be released.
func (h *hand) unwanted(it *item) bool {
	return h.leaving || it.caps.Suspend && (h.stopped || h.gate.Shut())
}

// release is the verdict for a delivery that is returned to the queue.
var release = verdict.Decision{Verdict: transport.Verdict{Kind: transport.Release}}

// drop ends an unread delivery with a verdict. It returns the delivery, or nil if an extension has
// to end first.
func (h *hand) drop(it *item, v verdict.Decision) []*item {
	h.lines.Close(it.line)
	if h.settle(it, v) {
		return []*item{it}
	}
	return nil
}

// A change lists the actions that follow a change of the gate or the end of deliveries.
type change struct {
	release   []*item                   // deliveries to release
	end       []context.CancelCauseFunc // handlers to end
	interrupt []context.CancelFunc      // receives to interrupt
	hire      int                       // workers to start
	fetch     []*source                 // queues with a due retry
	events    []killswitch.Event        // to report
}

// add adds the actions of d.
func (c *change) add(d change) {
	c.release = append(c.release, d.release...)
	c.end = append(c.end, d.end...)
	c.interrupt = append(c.interrupt, d.interrupt...)
	c.hire += d.hire
	c.fetch = append(c.fetch, d.fetch...)
	c.events = append(c.events, d.events...)
}

// gateChanged applies the gate's state to the unread deliveries and to the receives under way.
func (h *hand) gateChanged(now time.Time) (c change) {
	if h.gate.Shut() {
		c = h.dropUnread()
	}
	if w := h.gate.Wake(); !w.IsZero() && w.Before(h.armed) {
		h.kick(now)
	}
	h.offer()
	h.work.Broadcast()
	c.hire = h.hire()
	c.events = h.gate.Events()
	return c
}

// dropUnread releases or postpones the unwanted unread deliveries, and interrupts the receives that
// can be repeated.
func (h *hand) dropUnread() (c change) {
	for _, it := range h.all() {
		if it.unread() && h.unwanted(it) {
			v := release
			if h.gate.State() == killswitch.Tripped && !h.stopped && it.caps.Verdicts.Has(transport.Snooze) && h.excuses.Count(it.key()) > 0 {
				// The next probe should receive other messages.
				v = verdict.Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: min(h.excuses.Delay(h.opts.KillSwitch.Probe), maxInvisibleDuration)}}
			}
			c.release = append(c.release, h.drop(it, v)...)
		}
	}
	for p := range h.polls {
		if p.repeatable || h.leaving {
			c.interrupt = append(c.interrupt, p.cancel)
		}
	}
	return c
}

// all returns the deliveries that maintainLeases watches, including unread ones.
func (h *hand) all() []*item { return h.leases.All() }

// schedule makes maintainLeases check a delivery at t.
func (h *hand) schedule(it *item, t time.Time) {
	h.leases.Set(&it.wake, t)
	if t.Before(h.armed) {
		h.kick(t)
	}
}

// kick makes maintainLeases check at t.
func (h *hand) kick(t time.Time) {
	h.armed = t
	select {
	case h.kicked <- struct{}{}:
	default: // a check is pending
	}
}

func (h *hand) unschedule(it *item) { h.leases.Remove(&it.wake) }
