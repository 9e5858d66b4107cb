package broker

import (
	"time"
)

// backlog is the slowest group's backlog, or all that the topic holds if it has no group.
func (t *topic) backlog() Limit {
	subs := *t.subs.Load()
	if len(subs) == 0 {
		return Limit{Messages: t.messages.Load(), Bytes: t.bytes.Load()}
	}
	var most Limit
	for _, s := range subs {
		l := s.backlog()
		most.Messages, most.Bytes = max(most.Messages, l.Messages), max(most.Bytes, l.Bytes)
	}
	return most
}

// throttle returns the limit that refuses sends to a topic now, or nil.
func (b *Broker) throttle(t *topic, now time.Time) *Throttle {
	if isDeadLetterTopic(t.name) {
		return nil
	}
	limit := t.config.Load().MaxBacklog
	if limit == (Limit{}) {
		limit = *b.backlog.Load()
	}
	subs := *t.subs.Load()
	if limit != (Limit{}) {
		t.gatesMu.Lock()
		th := t.gates.check("topic", t.name, t.backlog(), limit, func() (float64, float64) { return slowest(subs, now) }, now)
		t.gatesMu.Unlock()
		if th != nil {
			return th
		}
	}
	for _, s := range subs {
		limit := s.group.config.Load().MaxBacklog
		if limit == (Limit{}) {
			continue
		}
		s.gatesMu.Lock()
		th := s.gates.check("group", s.group.name, s.backlog(), limit, func() (float64, float64) { return s.drain.rate(now) }, now)
		s.gatesMu.Unlock()
		if th != nil {
			return th
		}
	}
	return nil
}

// slowest returns the drain rate of the subscription with the largest backlog.
func slowest(subs []*subscription, now time.Time) (messages, bytes float64) {
	var of *subscription
	for _, s := range subs {
		if of == nil || s.backlog().Messages > of.backlog().Messages {
			of = s
		}
	}
	if of == nil {
		return 0, 0
	}
	return of.drain.rate(now)
}
