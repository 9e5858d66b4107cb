package failover

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A Reason is the reason of a switch.
type Reason int

// The reasons of a switch.
const (
	noSwitch   Reason = iota // of no event
	Failing                  // sends to the endpoint, or probes of it, failed
	Throttling               // the endpoint throttled without an accepted send for longer than the grace
	Recovered                // an earlier endpoint has worked for long enough
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case noSwitch:
		return "none"
	case Failing:
		return "failing"
	case Throttling:
		return "throttling"
	case Recovered:
		return "recovered"
	}
	return "unknown"
}

// health is the known state of one endpoint. The zero value is a working endpoint. Results of sends
// change only the active endpoint's: a send to another one began before a switch.
type health struct {
	down           bool      // the last probe failed
	failures       int       // while active, the transient failures of sends in a row
	throttledSince time.Time // while active, the first throttle since the last accepted send; zero for none
	throttledLast  time.Time // the last throttle since then
	wellSince      time.Time // while inactive, the first probe of an unbroken success; zero after a failed probe
	activeSince    time.Time // the last time it became active
	proven         bool      // it has accepted a send since then
	relapses       int       // consecutive switches away soon after it had become active
}

// rules are the options of the decision.
type rules struct {
	failures   int           // of sends in a row, after which sends leave the endpoint
	grace      time.Duration // negative: throttling is no reason to switch
	switchBack time.Duration
}

// maxRelapses bounds the doubling of the time for which an endpoint must work. After steady times
// that time as the active endpoint, its relapses are reset.
const (
	maxRelapses = 5
	steady      = 10
)

// failing reports whether sends must leave h.
func (r rules) failing(h health) bool { return h.down || h.failures >= r.failures }

// throttling reports whether h has throttled for longer than the grace. Only throttles count, not
// the time after the last one, in which there may have been no sends.
func (r rules) throttling(h health) bool {
	return r.grace >= 0 && !h.throttledSince.IsZero() && h.throttledLast.Sub(h.throttledSince) >= r.grace
}

// throttled returns h after a throttle.
func (h health) throttled(now time.Time) health {
	if h.throttledSince.IsZero() {
		h.throttledSince = now
	}
	h.throttledLast = now
	return h
}

// failed returns h after a transient failure of a send.
func (h health) failed() health {
	h.failures++
	return h
}

// accepted returns h after an accepted send.
func (h health) accepted() health {
	h.failures, h.throttledSince, h.throttledLast, h.proven = 0, time.Time{}, time.Time{}, true
	return h
}

// spotless reports whether an accepted send would not change h.
func (h health) spotless() bool { return h.failures == 0 && h.throttledSince.IsZero() && h.proven }

// probed returns h after a probe.
func (h health) probed(now time.Time, ok bool) health {
	switch {
	case !ok:
		h.down, h.wellSince = true, time.Time{}
	case h.wellSince.IsZero():
		h.down, h.wellSince = false, now
	}
	return h
}

// demanded returns the time for which an endpoint must work before sends return to it.
func (r rules) demanded(h health) time.Duration {
	return times(r.switchBack, 1<<min(h.relapses, maxRelapses))
}

// times returns d·n, or the longest duration if that is less.
func times(d time.Duration, n int) time.Duration {
	if d > math.MaxInt64/time.Duration(n) {
		return math.MaxInt64
	}
	return d * time.Duration(n)
}

// decide returns the endpoint for sends, and the reason if it is not the active one. It is a pure
// function.
//
// Sends leave a failing endpoint for any endpoint that works. They leave a throttling one for a
// later endpoint, or for an earlier one that sends could return to anyway: the earlier one may have
// been left because it throttles too.
func decide(now time.Time, active int, all []health, r rules) (next int, why Reason) {
	switch h := all[active]; {
	case r.failing(h):
		why = Failing
	case r.throttling(h):
		why = Throttling
	}
	for i, h := range all {
		if i == active || r.failing(h) {
			continue
		}
		well := !h.wellSince.IsZero() && now.Sub(h.wellSince) >= r.demanded(h)
		switch {
		case i < active && well && why == noSwitch:
			return i, Recovered
		case why != noSwitch && (i > active || well || why == Failing && !h.wellSince.IsZero()):
			return i, why
		}
	}
	return active, noSwitch
}

// switched returns the states after a switch. Sends that leave an endpoint soon after their return,
// or before it accepted one of them, are a relapse.
func switched(now time.Time, from, to int, all []health, r rules) []health {
	left := all[from]
	if from < to {
		long := now.Sub(left.activeSince) >= times(r.demanded(left), steady)
		if left.activeSince.IsZero() || long && left.proven {
			left.relapses = 0
		} else {
			left.relapses++
		}
	}
	// Probes show the health of an inactive endpoint, and sends that of the active one.
	all[from] = health{down: left.down, relapses: left.relapses, activeSince: left.activeSince}
	all[to] = health{down: all[to].down, relapses: all[to].relapses, activeSince: now}
	return all
}

// patience is the shortest time without a response that counts as a failure if the caller's
// deadline ends a send.
const patience = 250 * time.Millisecond

var errNothing = errors.New("the result does not show the state of the endpoint")

// verdict returns the result of a send for its endpoint: nil if the endpoint works, errNothing if
// the send shows nothing, or the failure. cause is the cause of the caller's ctx, or nil while ctx
// has not ended.
func verdict(err, cause error, took time.Duration) error {
	switch class := tidegate.Classify(err); {
	case class == tidegate.ClassOK:
		return nil
	case class != tidegate.ClassTransient, errors.Is(err, transport.ErrLaneChanged):
		return errNothing // throttles do not count here, because they have a grace of their own
	case cause == nil, errors.Is(cause, tidegate.ErrUnavailable):
		return err
	case errors.Is(cause, context.DeadlineExceeded) && took >= patience:
		return err
	}
	return errNothing
}

// track returns a function for the results of a send to e that begins now.
func (t *Transport) track(ctx context.Context, e *end) (report func([]transport.SendResult)) {
	begin := time.Now()
	return func(results []transport.SendResult) {
		err := errNothing
		for i, r := range results {
			if r.Err == nil {
				err = nil
				break
			}
			if i == 0 {
				err = r.Err
			}
		}
		t.note(e, err, verdict(err, context.Cause(ctx), time.Since(begin)))
	}
}

// note records the result of a send, and switches if necessary.
func (t *Transport) note(e *end, err, v error) {
	throttled := errors.Is(err, tidegate.ErrThrottled)
	if v == nil && !e.marked.Load() || !throttled && errors.Is(v, errNothing) {
		return // the case of nearly all sends
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e != t.now() {
		return // the send began before a switch; probes show the health of e
	}
	h := &t.health[e.index]
	switch {
	case v == nil:
		*h = h.accepted()
	case throttled:
		*h = h.throttled(time.Now())
		t.last[e.index] = err
	default:
		*h = h.failed()
		t.last[e.index] = err
		e.suspect.Store(true)
	}
	e.marked.Store(!h.spotless())
	t.reconsider(time.Now())
}

// reconsider switches if the health of the endpoints demands it. t.mu is held.
func (t *Transport) reconsider(now time.Time) {
	from := int(t.active.Load())
	to, why := decide(now, from, t.health, t.rules)
	if why == noSwitch || t.ctx.Err() != nil {
		return
	}
	event := Event{At: now, From: t.ends[from].Name, To: t.ends[to].Name, Reason: why}
	if why != Recovered {
		event.Err = t.last[from]
	}
	select {
	case t.events <- event:
	default:
		return // OnSwitch is 64 events late; the next probe decides again
	}
	switched(now, from, to, t.health, t.rules)
	t.ends[to].marked.Store(true)
	t.active.Store(int64(to))
	if why == Failing {
		t.ends[from].leave()
	}
}

// errLeft ends attempts that wait for a connection to a failing endpoint after a switch.
var errLeft = fmt.Errorf("%w: sends now go to another endpoint", tidegate.ErrUnavailable)

// leave ends the attempts that wait for a connection to e.
func (e *end) leave() {
	next, cancel := context.WithCancelCause(context.Background()) // ends with the next switch
	e.era.Swap(&era{next, cancel}).cancel(errLeft)
}

// sending returns a ctx that also ends when sends leave e, if the caller waits for a connection.
// The next attempt then uses the other endpoint at once.
func (t *Transport) sending(ctx context.Context, e *end) (context.Context, func()) {
	if !transport.AwaitsConnection(ctx) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.era.Load().ctx, func() { cancel(errLeft) })
	if t.now() != e { // sends left e after the caller had chosen it: the era is that of its next use
		cancel(errLeft)
	}
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// An era is the time until sends leave an endpoint because it fails.
type era struct {
	ctx    context.Context //nolint:containedctx // independent of requests
	cancel context.CancelCauseFunc
}

// watch reports switches.
func (t *Transport) watch() {
	for {
		select {
		case e := <-t.events:
			t.announce(e)
		case <-t.ctx.Done():
			return
		}
	}
}

// announce logs a switch and calls OnSwitch.
func (t *Transport) announce(e Event) {
	log := t.opts.Logger.With("from", e.From, "to", e.To, "reason", e.Reason.String())
	defer func() {
		if v := recover(); v != nil {
			log.Error("failover: OnSwitch panicked", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	if e.Err != nil {
		log.Warn("failover: switched", "error", e.Err)
	} else {
		log.Info("failover: switched")
	}
	if t.opts.OnSwitch != nil {
		t.opts.OnSwitch(e)
	}
}

// probe pings an endpoint that sends do not use, or that has failed a send.
func (t *Transport) probe(e *end) {
	ticker := time.NewTicker(t.opts.ProbeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-t.ctx.Done():
			return
		}
		if suspect := e.suspect.Swap(false); t.now() == e && !suspect && !e.down.Load() {
			continue // sends show its health
		}
		ctx, cancel := context.WithTimeout(t.ctx, t.opts.ProbeTimeout)
		err := e.ping.Ping(ctx)
		cancel()
		if reactionTo(err).responds { // perhaps with a throttle
			err = nil
		}
		t.mu.Lock()
		h := &t.health[e.index]
		*h = h.probed(time.Now(), err == nil)
		if err != nil {
			t.last[e.index] = fmt.Errorf("probe: %w", err)
		}
		e.down.Store(h.down)
		t.reconsider(time.Now())
		t.mu.Unlock()
	}
}
