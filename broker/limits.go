package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/settings"
)

// A Throttle is a limit at which the broker rejects sends, with its current value. String returns a
// text for operators. Its fields are
//
//	Limit       string     name of the limit, for example "topic backlog messages"
//	Subject     string     the topic, or the group of a limit of a group; empty for the whole broker
//	Topic       string     the topic whose sends the limit of a group rejects
//	Unit        string     of the three values: messages, bytes, ms, messages/s or bytes/s
//	Value       int64      current value
//	Mark        int64      the limit itself
//	Resume      int64      value at which the broker accepts sends again
//	Since       time.Time  start of the throttle; zero if the limit is not reached
//	RetryAfter  Duration   estimated time until Resume; zero means no estimate
type Throttle = limits.Throttle

// A LimitState is a limit that is set, with its current value. Besides the fields of Throttle it
// has On, which is true while the limit rejects sends.
type LimitState = limits.State

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
func (b *Broker) Throttles() []LimitState {
	open := b.begin()
	if open {
		defer b.end()
	}
	topics, _ := b.catalog.All()
	return b.limits.States(topics, open && b.store.Broken() == nil, time.Now())
}
