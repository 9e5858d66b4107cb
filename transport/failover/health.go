package failover

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

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
