package broker

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// Limits returns the limits of the whole broker that are in effect.
func (b *Broker) Limits() Limits {
	return Limits{MaxBacklog: *b.backlog.Load(), ClientQuota: b.quotas.Load().Quota, Pressure: *b.pressure.limits.Load()}
}

// SetLimits replaces all limits of the whole broker while it is in use. The limits apply from the
// next send on and are not stored on disk. A new ClientQuota refills the burst of every client. If
// a value is invalid, SetLimits changes nothing and returns an error that names each fault (40000).
func (b *Broker) SetLimits(l Limits) error {
	if err := l.Validate(); err != nil {
		return fail.Setting("SetLimits", "limits", err)
	}
	if before := b.quotas.Load(); before.Quota != l.ClientQuota {
		c, err := newClientQuota(l.ClientQuota)
		if err != nil {
			return fail.Setting("SetLimits", "limits", err)
		}
		b.quotas.Store(c)
	}
	b.backlog.Store(&l.MaxBacklog)
	b.pressure.limits.Store(&l.Pressure)
	b.pressure.at.Store(0) // the next send asks the storage
	return nil
}

// A LimitState is a limit that is set, with its current value.
type LimitState struct {
	Throttle
	On bool `json:"on"` // the limit rejects sends
}

// Throttles returns the state of each limit that is set: first the limits that reject sends, then
// by limit and subject. It omits the quota of a client, which rejects one client for a moment. It
// can read from the store.
func (b *Broker) Throttles() []LimitState {
	var out []LimitState
	open := b.begin()
	if open {
		defer b.end()
	}
	now := time.Now()
	open = open && b.store.Broken() == nil
	if open && b.opts.Dir != "" {
		b.pressure.ask(b, now)
	}
	if states := b.pressure.states.Load(); states != nil {
		out = append(out, *states...)
	}
	if full := b.store.DiskFull(); full != nil {
		out = append(out, LimitState{Throttle: *diskFull(full), On: true})
	}
	b.mu.RLock()
	topics := slices.Collect(maps.Values(b.topics))
	b.mu.RUnlock()
	for _, t := range topics {
		if topic.IsDeadLetter(t.Name()) {
			continue
		}
		if open {
			b.lookAtAges(t, now)
		}
		out = append(out, b.limitStates(t, now)...)
	}
	slices.SortFunc(out, func(x, y LimitState) int {
		if x.On != y.On {
			if x.On {
				return -1
			}
			return 1
		}
		return 2*strings.Compare(x.Limit, y.Limit) + strings.Compare(x.Subject, y.Subject)
	})
	return out
}

// limitStates returns the limits of a topic and of its groups.
func (b *Broker) limitStates(t *topic.Topic, now time.Time) (out []LimitState) {
	subs := t.Subscriptions()
	out = append(out, limitsOfTopic(t).states(b.backlogLimit(t), now)...)
	out = append(out, rateStates(t, now)...)
	for _, s := range subs {
		c := s.Consumed()
		for _, l := range limitsOfGroup(c).states(c.Group().Settings().MaxBacklog, now) {
			l.Topic = t.Name()
			out = append(out, l)
		}
	}
	if cold := coldLimit(b.pressure.limits.Load()); cold.PerSecond > 0 {
		s := coldReads(t, cold, subs, now)
		out = append(out, LimitState{coldThrottle(t, s), s.On})
	}
	return out
}
