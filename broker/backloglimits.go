package broker

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

func limitAmount(l Limit) throttle.Amount {
	return throttle.Amount{l.Messages, l.Bytes, time.Duration(l.Age).Milliseconds()}
}

// backlogLimit returns the limit of a topic's backlog.
func (b *Broker) backlogLimit(t *topic.Topic) Limit {
	if l := t.Settings().MaxBacklog; l != (Limit{}) {
		return l
	}
	return *b.backlog.Load()
}

// A backlogged is a backlog with limits: that of a topic, or of a group in one.
type backlogged interface {
	// Limited returns the backlog, with the age at the last look.
	Limited(now time.Time) throttle.Amount

	// DrainTime estimates how long it takes until the backlog is down to resume; 0 for no estimate.
	DrainTime(m throttle.Measure, resume int64, now time.Time) time.Duration

	// Drained returns the messages and bytes that leave the backlog in a second.
	Drained(now time.Time) (messages, bytes float64)
}

// backlogLimits are the limits of one backlog in use.
type backlogLimits struct {
	*topic.Gates
	of      backlogged
	names   *[throttle.Measures]string
	subject string // the topic or the group
}

func limitsOfTopic(t *topic.Topic) backlogLimits {
	return backlogLimits{&t.Throttling.Backlog, t, &topicLimits, t.Name()}
}

func limitsOfGroup(c *topic.Consumption) backlogLimits {
	return backlogLimits{&c.Gates, c, &groupLimits, c.Group().Name()}
}

// update compares a backlog with its limits; without any it forgets those there
// were. mu is held.
func (l backlogLimits) update(value, marks throttle.Amount, now time.Time) (throttle.Measure, bool) {
	l.Used.Store(marks != throttle.Amount{})
	return l.Gates.Gates.Update(value, marks, now)
}

// check returns the limit that refuses a send now, or nil. by is nil if nothing is sent.
func (l backlogLimits) check(limit Limit, by *sender, now time.Time) *Throttle {
	if limit == (Limit{}) && !l.Used.Load() {
		return nil
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	value, marks := l.of.Limited(now), limitAmount(limit)
	if m, on := l.update(value, marks, now); on {
		if by != nil {
			l.Gates.Gates.Wait(by.client, now)
		}
		refuses := l.state(m, value, marks, now)
		return &refuses.Throttle
	}
	if by == nil || !l.Gates.Gates.Sharing() {
		return nil
	}
	messages, bytes := l.of.Drained(now)
	share, ok := l.Gates.Gates.Share(by.client, by.size, value, marks, messages, bytes, now)
	if ok {
		return nil
	}
	return &Throttle{
		Limit: limitFairShare, Subject: l.subject, Unit: rateUnits[share.Measure],
		Value: share.PerSecond, Mark: share.PerSecond, Resume: share.PerSecond, Since: share.Since, RetryAfter: Duration(share.RetryAfter),
		detail: fmt.Sprintf("client %q has had its share while %d clients share what %q drains after a throttle", by.client, share.Clients, l.subject),
	}
}

// states returns the state of each limit that is set.
func (l backlogLimits) states(limit Limit, now time.Time) (out []LimitState) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	value, marks := l.of.Limited(now), limitAmount(limit)
	l.update(value, marks, now)
	for m := range throttle.Measures {
		if marks[m] > 0 {
			out = append(out, l.state(m, value, marks, now))
		}
	}
	return out
}

func (l backlogLimits) state(m throttle.Measure, value, marks throttle.Amount, now time.Time) LimitState {
	s := l.Gates.Gates.State(m, value, marks)
	if s.On {
		s.RetryAfter = l.of.DrainTime(m, s.Resume, now)
	}
	return LimitState{Throttle{Limit: l.names[m], Subject: l.subject, Unit: backlogUnits[m]}.at(s), s.On}
}
