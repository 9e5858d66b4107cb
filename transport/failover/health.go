package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// patience is the shortest time without a response that counts as a failure if the caller's
// deadline ends a send.
const patience = 250 * time.Millisecond

var errNothing = errors.New("the result does not show the state of the endpoint")

// newBreaker returns the breaker of one endpoint. Sends report to it while it is closed, and probes
// close it.
func (t *Transport) newBreaker() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     t.opts.ProbeInterval / 2,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= t.opts.Failures },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNothing) },
	})
}

// verdict returns the result of a send for its endpoint: nil if the endpoint works, errNothing if
// the send shows nothing, or the failure. cause is the cause of the caller's ctx, or nil while ctx
// has not ended.
func verdict(err, cause error, took time.Duration) error {
	switch class := transport.Classify(err); {
	case class == transport.OK:
		return nil
	case class != transport.Transient, errors.Is(err, transport.ErrLaneChanged):
		return errNothing // throttles do not count here, because they have a grace of their own
	case cause == nil, errors.Is(cause, tidegate.ErrUnavailable):
		return err
	case errors.Is(cause, context.DeadlineExceeded) && took >= patience:
		return err
	}
	return errNothing
}

// track asks the endpoint's breaker to admit a send. The caller reports the results to the returned
// function. If the breaker is open, the send uses the endpoint nevertheless, because there is no
// better one.
func (t *Transport) track(ctx context.Context, e *end) (report func([]transport.SendResult)) {
	begin := time.Now()
	done, refused := e.breaker.Allow()
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
		v := verdict(err, context.Cause(ctx), time.Since(begin))
		if refused == nil {
			done(v)
		}
		t.note(e, err, v)
	}
}

// note records the result of a send, and switches if necessary.
func (t *Transport) note(e *end, err, v error) {
	throttled := errors.Is(err, tidegate.ErrThrottled)
	if v == nil && !e.throttled.Load() || !throttled && errors.Is(v, errNothing) {
		return // the case of nearly all sends
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h := &t.health[e.index]
	switch {
	case v == nil:
		*h = h.accepted()
	case throttled && e.index == int(t.active.Load()): // otherwise the send began before a switch
		*h = t.rules.throttle(*h, time.Now(), tidegate.RetryAfter(err))
	}
	e.throttled.Store(!h.throttledSince.IsZero())
	if v != nil {
		t.last[e.index] = err
		e.suspect.Store(!errors.Is(v, errNothing))
	}
	t.reconsider(time.Now())
}

// reconsider switches if the health of the endpoints demands it. t.mu is held.
func (t *Transport) reconsider(now time.Time) {
	for i, e := range t.ends {
		t.health[i].failing = t.health[i].down || e.breaker.State() != gobreaker.StateClosed
	}
	from := int(t.active.Load())
	to, why := decide(now, from, t.health, t.rules)
	if why == NoSwitch || t.ctx.Err() != nil {
		return
	}
	event := Event{At: now, From: t.ends[from].Name, To: t.ends[to].Name, Reason: why}
	if why != Recovered {
		event.Err = t.last[from]
	}
	select {
	case t.events <- event:
	default:
		return // OnSwitch is 64 events late: do not switch
	}
	switched(now, from, to, t.health, t.rules)
	t.ends[from].throttled.Store(false)
	t.ends[to].throttled.Store(false)
	t.active.Store(int64(to))
	t.ends[from].leave()
}

// errLeft ends attempts that wait for a connection to the endpoint after a switch.
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

// An era is the time in which an endpoint is active.
type era struct {
	ctx    context.Context //nolint:containedctx // independent of requests
	cancel context.CancelCauseFunc
}

// watch reports switches, and checks periodically whether one is due.
func (t *Transport) watch() {
	ticker := time.NewTicker(t.opts.ProbeInterval)
	defer ticker.Stop()
	for {
		select {
		case e := <-t.events:
			log := t.opts.Logger.With("from", e.From, "to", e.To, "reason", e.Reason.String())
			if e.Err != nil {
				log.Warn("failover: switched", "error", e.Err)
			} else {
				log.Info("failover: switched")
			}
			if t.opts.OnSwitch != nil {
				t.opts.OnSwitch(e)
			}
		case <-ticker.C:
			t.mu.Lock()
			t.reconsider(time.Now())
			t.mu.Unlock()
		case <-t.ctx.Done():
			return
		}
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
		if t.now() == e && !e.suspect.Load() && !e.down.Load() && e.breaker.State() == gobreaker.StateClosed {
			continue // sends show its health
		}
		done, err := e.breaker.Allow()
		if err != nil {
			continue // another probe is under way, or one has just failed
		}
		ctx, cancel := context.WithTimeout(t.ctx, t.opts.ProbeTimeout)
		err = e.ping.Ping(ctx)
		cancel()
		if transport.Classify(err) == transport.Throttled {
			err = nil // it responds
		}
		done(err)
		t.mu.Lock()
		h := &t.health[e.index]
		switch {
		case err != nil:
			h.down, h.wellSince = true, time.Time{}
			t.last[e.index] = fmt.Errorf("probe: %w", err)
		case h.wellSince.IsZero():
			h.down, h.wellSince = false, time.Now()
		}
		e.down.Store(h.down)
		e.suspect.Store(false)
		t.reconsider(time.Now())
		t.mu.Unlock()
	}
}
