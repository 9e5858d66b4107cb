package broker

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

// Limits are what the whole broker has, beside those of topics and groups.
type Limits struct {
	MaxBacklog  Limit    `json:"max_backlog,omitzero"`  // see Options.MaxBacklog
	ClientQuota Quota    `json:"client_quota,omitzero"` // see Options.ClientQuota
	Pressure    Pressure `json:"pressure,omitzero"`     // see Options.Pressure
}

// Limits returns the limits of the whole broker that hold now.
func (b *Broker) Limits() Limits {
	return Limits{MaxBacklog: *b.backlog.Load(), ClientQuota: b.quotas.Load().Quota, Pressure: *b.pressure.limits.Load()}
}

// SetLimits changes all limits of the whole broker while it is in use. They hold from
// the next send on and are not kept on disk. Where one is not legal, the error
// names each fault (40000) and nothing has changed. A new ClientQuota makes every
// client's burst whole again.
func (b *Broker) SetLimits(l Limits) error {
	if err := errors.Join(l.MaxBacklog.validate("max_backlog"), l.ClientQuota.validate("client_quota"), l.Pressure.validate("pressure")); err != nil {
		return badConfig("SetLimits", "limits", err)
	}
	if before := b.quotas.Load(); before.Quota != l.ClientQuota {
		c, err := newClientQuota(l.ClientQuota)
		if err != nil {
			return badConfig("SetLimits", "limits", err)
		}
		b.quotas.Store(c)
	}
	b.backlog.Store(&l.MaxBacklog)
	b.pressure.limits.Store(&l.Pressure)
	b.pressure.at.Store(0) // the next send asks the storage
	return nil
}

// A LimitState is a limit that is set, and how far it is from refusing sends.
type LimitState struct {
	Throttle
	On bool `json:"on"` // sends are refused by it
}

// Throttles returns the state of each limit that is set, those that refuse
// sends first, then by limit and subject. The quota of a client is not
// among them: it refuses one client for a moment. It may read from the store.
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
		if isDeadLetterTopic(t.name) {
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
func (b *Broker) limitStates(t *topic, now time.Time) (out []LimitState) {
	subs := *t.subs.Load()
	out = append(out, t.limits.states(t, b.backlogLimit(t), now)...)
	out = append(out, t.rateStates(now)...)
	for _, s := range subs {
		for _, l := range s.limits.states(s, s.group.config.Load().MaxBacklog, now) {
			l.Topic = t.name
			out = append(out, l)
		}
	}
	if cold := b.pressure.limits.Load().cold(); cold.PerSecond > 0 {
		s := t.coldReads(cold, subs, now)
		out = append(out, LimitState{t.coldThrottle(s), s.On})
	}
	return out
}
