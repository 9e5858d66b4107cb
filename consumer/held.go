package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A held delivery is one in hand. Only the goroutine that owns it uses it,
// and so an extension and a settlement never meet.
type held struct {
	d       *tidegate.Delivery // as received: the handler's, and neither read nor written here
	current tidegate.Delivery  // the same, with the handle that is valid now
	turn    *turn

	lease   time.Duration // how long the invisible time was when it was given, or seen to be
	until   time.Time     // its end, by our clock
	renew   time.Time     // when to extend it
	last    time.Time     // no extension begins after that
	unsure  bool          // the answer to an extension was lost: another handle may be the valid one
	lost    bool
	lostErr error // why, if the server said so
}

func (r *run) hold(d *tidegate.Delivery, t *turn, now time.Time) *held {
	// A repeated answer to a receive whose first one was lost brings leases that
	// have run for a while: the delivery says what is left, by our clock.
	left := r.opts.InvisibleDuration
	if !d.InvisibleUntil.IsZero() {
		left = min(left, max(d.InvisibleUntil.Sub(now), 0))
	}
	h := &held{d: d, current: *d, turn: t, lease: left, until: now.Add(left)}
	if r.opts.MaxExtension > 0 {
		h.last = now.Add(r.opts.MaxExtension)
	}
	h.plan(now.Add(left / 3))
	return h
}

// plan sets the time of the next extension; there is none after last, and
// then the only thing left to happen is the end of the lease.
func (h *held) plan(t time.Time) {
	if t.After(h.last) || t.After(h.until) {
		t = h.until
	}
	h.renew = t
}

type event int

const (
	happened event = iota
	stopped
	leaseLost
)

// keep extends h's invisible time until something happens: what is received
// from what, a close of stop, or the loss of the lease. Either channel may be
// nil; a nil what happens at once.
func (r *run) keep(h *held, what, stop <-chan struct{}) event {
	if what == nil {
		return happened
	}
	timer := time.NewTimer(time.Until(h.renew))
	defer timer.Stop()
	for {
		select {
		case <-what:
			return happened
		case <-stop:
			return stopped
		case <-timer.C:
			if !r.extend(h) {
				return leaseLost
			}
			timer.Reset(time.Until(h.renew))
		}
	}
}

// extend makes one attempt to extend the lease. It returns false if it is lost.
func (r *run) extend(h *held) bool {
	now := time.Now()
	if !now.Before(h.until) {
		h.lost = true
		return false
	}
	inv := r.opts.InvisibleDuration
	// The handler may be done meanwhile and has to wait for the answer: which
	// handle is the valid one is not known before.
	ctx, cancel := context.WithTimeout(r.detached, min(inv/3, h.until.Sub(now)))
	defer cancel()
	err := r.change(ctx, h, inv)
	switch {
	case err == nil:
		h.lease, h.until = inv, now.Add(inv) // from before the call: rather too early than too late
		h.plan(now.Add(inv / 3))
		return true
	case errors.Is(err, tidegate.ErrInvalidHandle):
		h.lost, h.lostErr = true, err
		return false
	}
	r.log.Warn("extending the invisible time failed", "topic", h.current.Topic, "message_id", h.current.ID, "error", err)
	h.plan(time.Now().Add(max(h.lease/10, inv/100)))
	return true
}

// change extends the lease and takes over the handle that is valid then. It can be
// repeated after a lost answer: the server knows the handle that it replaced. A real
// RocketMQ does not; there a lost answer to an extension costs a second delivery.
func (r *run) change(ctx context.Context, h *held, dur time.Duration) error {
	do := r.transport.ChangeInvisibleDuration
	if repeater, ok := r.transport.(transport.ChangeRepeater); ok && h.unsure {
		do = repeater.RepeatChange
	}
	handle, err := do(ctx, &h.current, dur)
	h.unsure = err != nil && (h.unsure || perhaps(err))
	if err == nil && handle != "" {
		h.current.Handle = handle
	}
	return err
}

// recover finds out which handle is valid, for a settlement that was told that the
// handle is not, where an extension may be why. The lease becomes no longer.
func (r *run) recover(ctx context.Context, h *held) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return r.change(ctx, h, max(time.Until(h.until), time.Millisecond))
}

// loss is the cause for the handler's context.
func (h *held) loss() error {
	if h.lostErr != nil {
		return fmt.Errorf("%w: %w", ErrLeaseLost, h.lostErr)
	}
	return ErrLeaseLost
}
