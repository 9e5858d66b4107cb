package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// Limits returns the limits of the whole broker that are in effect.
func (b *Broker) Limits() settings.Limits { return b.limits.Settings() }

// SetLimits replaces all limits of the whole broker while it is in use. The limits apply from the
// next send on and are not stored on disk. A new ClientQuota refills the burst of every client. If
// a value is invalid, SetLimits changes nothing and returns an error that names each fault (40000).
func (b *Broker) SetLimits(l settings.Limits) error {
	return fail.Setting("SetLimits", "limits", b.limits.Set(l))
}

// Throttles returns the state of each limit that is set: first the limits that reject sends, then
// by limit and subject. It omits the quota of a client, which rejects one client for a moment. It
// can read from the store.
func (b *Broker) Throttles() []status.LimitState {
	open := b.begin()
	if open {
		defer b.end()
	}
	topics, _ := b.catalog.All()
	return b.limits.States(topics, open && b.store.Broken() == nil, time.Now())
}
