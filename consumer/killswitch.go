package consumer

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate/consumer/internal/killswitch"
)

// A KillSwitch stops a consumer whose handlers fail in large numbers, for example during the outage
// of a database. When it trips, the consumer stops receiving. On servers with
// [transport.Capabilities].Suspend it releases the messages that wait for a handler.
//
// After Probe the consumer handles one message, if there is one that did not fail in an earlier
// probe. If the handler fails, the switch trips again. If it succeeds, the concurrency starts at 1
// and doubles each second up to its full value. [Push.Tripped] reports the time from the trip to
// the full concurrency, and PushOptions.OnKillSwitch is called at its begin and end.
//
// The failure that trips the switch, and the failures until the full concurrency is reached again,
// cost no attempt on a tidegate broker: the message is delivered again after 4 × Probe, twice as
// long after each further failure, and Outcome.Disposition is [Snoozed]. Two kinds of failures are
// excepted. A consumer excuses 5 failures of one message in this way; the next ones cost attempts,
// so that a message that always fails becomes a dead letter. Each call of Run counts separately:
// with n consumers in the group a message has up to 5 n excuses, and a new Run begins at 0. The
// count of a message is also lost after 4096 other messages were excused. [DeadLetterNow] makes a
// dead letter in any case. If very many messages have failed, or wait for a probe, the delay can be
// longer. On servers that neither take [transport.Snooze] nor have [transport.Capabilities].Suspend,
// such as RocketMQ, all of these messages are retried as usual.
//
// The zero value never stops the consumer.
type KillSwitch struct {
	// FailureRatio trips the switch when the share of failures among the last handled messages
	// reaches it. At most 1. Zero means that failures do not trip the switch.
	FailureRatio float64

	// DeadLetters is the number of dead letters within Window that trips the switch. Zero means
	// that dead letters do not trip the switch.
	DeadLetters int

	// MinMessages is the number of messages that must have been handled within Window before
	// FailureRatio applies. While the concurrency grows after a probe, 2 are enough. The ratio
	// covers the last MinMessages to 2 × MinMessages messages. Default: 20.
	MinMessages int

	// Window is the time for which results and dead letters count. Default: 30 s.
	Window time.Duration

	// Probe is the time from a trip or a failed probe to the next probe. Default: 5 s.
	Probe time.Duration
}

// A KillSwitchEvent describes a trip of a [KillSwitch], or its return. A failed probe is no further
// trip: between two trips is a return.
type KillSwitchEvent struct {
	Group   string
	Tripped bool // false for the return to full concurrency

	Handled     int           // of a trip: the recent messages that FailureRatio was compared with
	Failed      int           // of a trip: the failures among them
	DeadLetters int           // of a trip: the dead letters within KillSwitch.Window, if they are counted
	Lasted      time.Duration // of a return: the time since the trip
}

// Tripped reports whether the kill switch of a Run under way holds messages back: from its trip
// until full concurrency is reached again. It does not block.
func (p *Push) Tripped() bool {
	p.mu.Lock()
	runs := slices.Collect(maps.Keys(p.runs))
	p.mu.Unlock()
	return slices.ContainsFunc(runs, func(r *run) bool { return r.hand.tripped() })
}

func (h *hand) tripped() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gate.State() != killswitch.Flowing
}

// announce reports events of the kill switch.
func (r *run) announce(events []killswitch.Event) {
	for _, e := range events {
		r.announcer.Do(func() {
			if e.Tripped {
				r.log.Warn("kill switch tripped; the consumer handles single messages until one succeeds", "topic", r.topicNames(), "group", r.sub.Group,
					"handled", e.Handled, "failed", e.Failed, "dead_letters", e.DeadLetters, "probe_interval", r.opts.KillSwitch.Probe)
			} else {
				r.log.Info("kill switch returned to full concurrency", "topic", r.topicNames(), "group", r.sub.Group, "duration", e.Lasted)
			}
			if r.opts.OnKillSwitch != nil {
				r.guard("OnKillSwitch panicked", "", func() {
					r.opts.OnKillSwitch(KillSwitchEvent{
						Group: r.sub.Group, Tripped: e.Tripped, Handled: e.Handled, Failed: e.Failed, DeadLetters: e.DeadLetters, Lasted: e.Lasted,
					})
				})
			}
		})
	}
}

// gate returns the state machine of the switch.
func (k KillSwitch) gate() *killswitch.Gate { return killswitch.New(killswitch.Options(k)) }

// permitted waits for the limiter's permission to receive messages of t, and returns their number,
// up to most. It returns 0 if the run ends, or if a helper would have to wait. An error of the
// limiter is reported like a failed receive: without permission the consumer receives nothing.
func (r *run) permitted(p *permits, t *topic, most int, more, helper bool) int {
	for failures := 0; ; failures++ {
		n, err := p.Await(r.running, most, more, helper)
		if err == nil {
			return n
		}
		wait, end := r.receiveFailed(t, "the limiter does not permit the receive", err, failures)
		if end || r.pause(wait) != nil {
			return 0
		}
	}
}

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
