package broker

import (
	"context"
	"time"
)

// backlog is the slowest group's backlog, or all that the topic holds if it has no group.
func (t *topic) backlog() Backlog {
	subs := *t.subs.Load()
	if len(subs) == 0 {
		all := Backlog{Messages: t.messages.Load() - t.lowMessages.Load(), Bytes: t.bytes.Load() - t.lowBytes.Load()}
		if t.holed.Load() {
			for _, q := range *t.queues.Load() {
				all.Messages -= q.removedMessages.Load()
				all.Bytes -= q.removedBytes.Load()
			}
		}
		return all
	}
	var most Backlog
	for _, s := range subs {
		l := s.backlog()
		most.Messages, most.Bytes = max(most.Messages, l.Messages), max(most.Bytes, l.Bytes)
	}
	return most
}

// amount is backlog, and what waits for its delivery time, with the age as it was looked at last.
func (t *topic) amount(now time.Time) amount {
	subs := *t.subs.Load()
	l, waiting := t.backlog(), t.delays.waiting()
	age := t.aging.age(now)
	if len(subs) > 0 {
		age = 0
	}
	for _, s := range subs {
		age = max(age, s.aging.age(now))
	}
	return amount{l.Messages + waiting.Messages, l.Bytes + waiting.Bytes, age.Milliseconds()}
}

func (s *subscription) amount(now time.Time) amount {
	l := s.backlog()
	return amount{l.Messages, l.Bytes, s.aging.age(now).Milliseconds()}
}

// backlogLimit returns the limit of a topic's backlog.
func (b *Broker) backlogLimit(t *topic) Limit {
	if l := t.config.Load().MaxBacklog; l != (Limit{}) {
		return l
	}
	return *b.backlog.Load()
}

// A sender is who wants to send a message of that many bytes to a topic.
type sender struct {
	client string
	size   int64
}

// observe looks at what is not known at any moment, before a send: the state of
// the storage, and ages that are limited. It may read from the store, and is
// not called under any lock.
func (b *Broker) observe(t *topic, now time.Time) {
	b.pressure.look(b, now)
	b.lookAtAges(t, now)
}

// throttle returns the limit that refuses sends to a topic now, or nil. by is
// nil if nothing is sent; else limits that are used up by sending are used.
func (b *Broker) throttle(t *topic, now time.Time, by *sender) *Throttle {
	if th := b.throttleAll(); th != nil {
		return th
	}
	if isDeadLetterTopic(t.name) {
		return nil
	}
	subs := *t.subs.Load()
	if limit := b.backlogLimit(t); limit != (Limit{}) {
		t.gatesMu.Lock()
		marks, value := limit.amount(), t.amount(now)
		th := t.gates.check("topic", t.name, value, marks, func(m measure, resume int64) time.Duration { return t.longest(m, resume, now) }, now)
		if by != nil {
			th = t.gates.share(th, t.name, by, value, marks, func() (float64, float64) { return slowest(subs, now) }, now)
		}
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
		marks, value := limit.amount(), s.amount(now)
		th := s.gates.check("group", s.group.name, value, marks, func(m measure, resume int64) time.Duration { return s.drainTime(m, resume, now) }, now)
		if by != nil {
			th = s.gates.share(th, s.group.name, by, value, marks, func() (float64, float64) { return s.drain.rate(now) }, now)
		}
		s.gatesMu.Unlock()
		if th != nil {
			th.Topic = t.name
			return th
		}
	}
	if th := b.throttleCold(t, subs, now); th != nil {
		return th
	}
	return t.throttleRate(by, now)
}

// throttleAll returns the limit that refuses all sends now, or nil.
func (b *Broker) throttleAll() *Throttle {
	if full := b.store.DiskFull(); full != nil {
		return diskFull(full)
	}
	return b.pressure.throttle.Load()
}

// room waits until the log has room for more. Who would wait is refused if the
// storage refuses all sends, or comes to that meanwhile; limit is then set.
func (b *Broker) room(ctx context.Context) (limit string, err error) {
	err = b.store.Messages.Room(ctx, func() error {
		b.pressure.look(b, time.Now())
		th := b.throttleAll()
		if th == nil {
			return nil
		}
		limit = th.Limit
		return throttledError(*th)
	})
	return limit, err
}

// drainTime estimates how long it takes until the backlog is down to resume. 0 if
// nothing drains and nothing can be said.
func (s *subscription) drainTime(m measure, resume int64, now time.Time) time.Duration {
	perMessage, perByte := s.drain.rate(now)
	l := s.backlog()
	switch m {
	case byMessages:
		return pushBack(l.Messages-resume, perMessage)
	case byBytes:
		return pushBack(l.Bytes-resume, perByte)
	}
	// The age falls as consumers come to newer messages, and is none when they
	// have come to the end.
	all := pushBack(l.Messages, perMessage)
	falling := pushBack(s.aging.age(now).Milliseconds()-resume, s.aging.fall()*1000)
	if all == 0 || falling == 0 {
		return max(all, falling)
	}
	return min(all, falling)
}

// longest returns the longest drain time of the subscriptions that are above
// resume: the last of them ends the throttle. What waits for its delivery time is
// not drained meanwhile; if that alone is too much, nothing can be said.
func (t *topic) longest(m measure, resume int64, now time.Time) (most time.Duration) {
	waiting := t.delays.waiting()
	if resume -= (amount{waiting.Messages, waiting.Bytes, 0})[m]; resume < 0 {
		return 0
	}
	for _, s := range *t.subs.Load() {
		if s.amount(now)[m] <= resume {
			continue
		}
		d := s.drainTime(m, resume, now)
		if d == 0 {
			return 0
		}
		most = max(most, d)
	}
	return most
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
