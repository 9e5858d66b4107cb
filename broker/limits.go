package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// Limits returns the limits of the whole broker that are in effect.
func (b *Broker) Limits() settings.Limits { return b.limits.Settings() }

// SetLimits replaces all limits of the whole broker while it is in use, and returns when they are
// on disk. They apply from the next send on. A new ClientQuota refills the burst of every client.
// If a value is invalid, SetLimits changes nothing and returns an error that names each fault
// (40000).
//
// The limits survive a restart. The last change of each limit wins: if Options has another value of
// a limit at the next Open than it has now, the value of Options applies. ClientQuota counts as one
// limit.
func (b *Broker) SetLimits(ctx context.Context, l settings.Limits) error {
	return b.PatchLimits(ctx, func(now *settings.Limits) error { *now = l; return nil })
}

// PatchLimits is SetLimits for a change of the limits that are in effect. It calls change with a
// copy of them, while no other change of settings is under way; change must not wait. An error of
// change is returned and changes nothing.
func (b *Broker) PatchLimits(ctx context.Context, change func(*settings.Limits) error) error {
	return b.changeLimits(ctx, func() error {
		l := b.limits.Settings()
		if err := change(&l); err != nil {
			return err
		}
		return b.limits.Set(l)
	})
}

// ConfigureLimits replaces the limits of Options while the broker is in use, as Close and Open with
// these would. A limit that differs from the one of Options replaces the one of SetLimits. The rest
// is as in SetLimits.
func (b *Broker) ConfigureLimits(ctx context.Context, l settings.Limits) error {
	return b.changeLimits(ctx, func() error { return b.limits.Configure(l) })
}

func (b *Broker) changeLimits(ctx context.Context, change func() error) error {
	const op = "SetLimits"
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return refusal.WithOp(op, err)
	}
	defer end()
	if err := b.catalog.LockAdmin(ctx); err != nil {
		return refusal.WithOp(op, &tidegate.Error{Err: err})
	}
	defer b.catalog.UnlockAdmin()
	err = change()
	if _, ok := errors.AsType[*tidegate.Error](err); ok { // of a PatchLimits, or of the store
		return refusal.WithOp(op, err)
	}
	return refusal.Setting(op, "limits", err)
}

// Throttles returns the state of each limit that is set: first the limits that reject sends, then
// by limit and subject. It omits the quota of a client, which rejects one client for a moment. It
// can read from the store.
func (b *Broker) Throttles() []status.LimitState {
	open := b.calls.Begin()
	if open {
		defer b.calls.End()
	}
	topics, _ := b.catalog.All()
	return b.limits.States(topics, open && b.store.Broken() == nil, time.Now())
}
