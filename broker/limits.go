package broker

import (
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/limits"
)

// A Throttle is a limit at which the broker rejects sends, with its current value: Limit is the
// name, Mark the value of the limit itself. The broker accepts sends again when Value is at Resume,
// after about RetryAfter. String returns all of it as a text for people.
type Throttle = limits.Throttle

// A LimitState is a limit that is set, with its current value. On is true while it rejects sends.
type LimitState = limits.State

// Limits returns the limits of the whole broker that are in effect.
func (b *Broker) Limits() Limits { return b.limits.Settings() }

// SetLimits replaces all limits of the whole broker while it is in use. The limits apply from the
// next send on and are not stored on disk. A new ClientQuota refills the burst of every client. If
// a value is invalid, SetLimits changes nothing and returns an error that names each fault (40000).
func (b *Broker) SetLimits(l Limits) error {
	return fail.Setting("SetLimits", "limits", b.limits.Set(l))
}

// Throttles returns the state of each limit that is set: first the limits that reject sends, then
// by limit and subject. It omits the quota of a client, which rejects one client for a moment. It
// can read from the store.
func (b *Broker) Throttles() []LimitState {
	open := b.begin()
	if open {
		defer b.end()
	}
	b.mu.RLock()
	topics := slices.Collect(maps.Values(b.topics))
	b.mu.RUnlock()
	return b.limits.States(topics, open && b.store.Broken() == nil, time.Now())
}
