package broker

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// backlog is the slowest group's backlog, or all that the topic holds if it has no group.
func (t *topic) backlog() Backlog {
	subs := *t.subs.Load()
	if len(subs) == 0 {
		all := Backlog{Messages: t.messages.Load() - t.lowMessages.Load(), Bytes: t.bytes.Load() - t.lowBytes.Load()}
		if t.hasGaps.Load() {
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
func (t *topic) amount(now time.Time) throttle.Amount {
	subs := *t.subs.Load()
	l, waiting := t.backlog(), t.delayedBacklog()
	age := t.age.At(now)
	if len(subs) > 0 {
		age = 0
	}
	for _, s := range subs {
		age = max(age, s.age.At(now))
	}
	return throttle.Amount{l.Messages + waiting.Messages, l.Bytes + waiting.Bytes, age.Milliseconds()}
}

func (s *subscription) amount(now time.Time) throttle.Amount {
	l := s.backlog()
	return throttle.Amount{l.Messages, l.Bytes, s.age.At(now).Milliseconds()}
}

func limitAmount(l Limit) throttle.Amount {
	return throttle.Amount{l.Messages, l.Bytes, time.Duration(l.Age).Milliseconds()}
}

// backlogLimit returns the limit of a topic's backlog.
func (b *Broker) backlogLimit(t *topic) Limit {
	if l := t.config.Load().MaxBacklog; l != (Limit{}) {
		return l
	}
	return *b.backlog.Load()
}

// A backlogged is what has a backlog with limits: a topic, or a group in one.
type backlogged interface {
	// limited returns the names of the limits, and whose they are.
	limited() (limits *[throttle.Measures]string, subject string)
	// amount is the backlog, with the age as it was looked at last.
	amount(now time.Time) throttle.Amount
	// drainTime estimates how long it takes until it is down to resume; 0 if
	// nothing drains and nothing can be said.
	drainTime(m throttle.Measure, resume int64, now time.Time) time.Duration
	// drained is how many messages and bytes of it are done a second.
	drained(now time.Time) (messages, bytes float64)
}

// backlogLimits are the limits of one backlog in use.
type backlogLimits struct {
	used  atomic.Bool // gates has seen a limit; without one nothing is locked
	mu    sync.Mutex
	gates throttle.Backlog // guarded by mu
}

// update compares a backlog with its limits; without any it forgets those there
// were. mu is held.
func (l *backlogLimits) update(value, marks throttle.Amount, now time.Time) (throttle.Measure, bool) {
	l.used.Store(marks != throttle.Amount{})
	return l.gates.Update(value, marks, now)
}

// check returns the limit that refuses a send now, or nil. by is nil if nothing is sent.
func (l *backlogLimits) check(of backlogged, limit Limit, by *sender, now time.Time) *Throttle {
	if limit == (Limit{}) && !l.used.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	value, marks := of.amount(now), limitAmount(limit)
	if m, on := l.update(value, marks, now); on {
		if by != nil {
			l.gates.Wait(by.client, now)
		}
		refuses := l.state(of, m, value, marks, now)
		return &refuses.Throttle
	}
	if by == nil || !l.gates.Sharing() {
		return nil
	}
	messages, bytes := of.drained(now)
	share, ok := l.gates.Share(by.client, by.size, value, marks, messages, bytes, now)
	if ok {
		return nil
	}
	_, subject := of.limited()
	return &Throttle{
		Limit: limitFairShare, Subject: subject, Unit: rateUnits[share.Measure],
		Value: share.PerSecond, Mark: share.PerSecond, Resume: share.PerSecond, Since: share.Since, RetryAfter: Duration(share.RetryAfter),
		detail: fmt.Sprintf("client %q has had its share while %d clients share what %q drains after a throttle", by.client, share.Clients, subject),
	}
}

// states returns the state of each limit that is set.
func (l *backlogLimits) states(of backlogged, limit Limit, now time.Time) (out []LimitState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	value, marks := of.amount(now), limitAmount(limit)
	l.update(value, marks, now)
	for m := range throttle.Measures {
		if marks[m] > 0 {
			out = append(out, l.state(of, m, value, marks, now))
		}
	}
	return out
}

func (l *backlogLimits) state(of backlogged, m throttle.Measure, value, marks throttle.Amount, now time.Time) LimitState {
	limits, subject := of.limited()
	s := l.gates.State(m, value, marks)
	if s.On {
		s.RetryAfter = of.drainTime(m, s.Resume, now)
	}
	return LimitState{Throttle{Limit: limits[m], Subject: subject, Unit: backlogUnits[m]}.at(s), s.On}
}

func (t *topic) limited() (limits *[throttle.Measures]string, subject string) {
	return &topicLimits, t.name
}

func (s *subscription) limited() (limits *[throttle.Measures]string, subject string) {
	return &groupLimits, s.group.name
}

// drained is how fast the group is done with messages.
func (s *subscription) drained(now time.Time) (messages, bytes float64) { return s.drain.Rate(now) }

// drained is the drain rate of the subscription with the largest backlog.
func (t *topic) drained(now time.Time) (messages, bytes float64) {
	var of *subscription
	for _, s := range *t.subs.Load() {
		if of == nil || s.backlog().Messages > of.backlog().Messages {
			of = s
		}
	}
	if of == nil {
		return 0, 0
	}
	return of.drained(now)
}

// consumer returns the backlog of the group, and how fast it falls.
func (s *subscription) consumer(now time.Time) throttle.Consumer {
	messages, bytes := s.drained(now)
	return throttle.Consumer{Backlog: s.amount(now), Drain: throttle.Draining{Messages: messages, Bytes: bytes, Age: s.age.Fall()}}
}

func (s *subscription) drainTime(m throttle.Measure, resume int64, now time.Time) time.Duration {
	c := s.consumer(now)
	return c.Drain.Until(m, c.Backlog, resume)
}

func (t *topic) drainTime(m throttle.Measure, resume int64, now time.Time) time.Duration {
	subs, waiting := *t.subs.Load(), t.delayedBacklog()
	groups := make([]throttle.Consumer, len(subs))
	for i, s := range subs {
		groups[i] = s.consumer(now)
	}
	return throttle.UntilAll(m, throttle.Amount{waiting.Messages, waiting.Bytes, 0}, groups, resume)
}
