package limits

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// A backlogged has a backlog with limits. It is a topic, or a group in a topic.
type backlogged interface {
	// Limited returns the backlog, with the age at the last look.
	Limited(now time.Time) throttle.Amount

	// DrainTime estimates how long it takes until the backlog is down to resume; 0 for no estimate.
	DrainTime(m throttle.Measure, resume int64, now time.Time) time.Duration

	// Drained returns the messages and bytes that leave the backlog in a second.
	Drained(now time.Time) (messages, bytes float64)
}

// A backlog has the state of the limits of one backlog.
type backlog struct {
	*topic.Gates
	of      backlogged
	names   *[throttle.Measures]string
	subject string // the topic or the group
}

func ofTopic(t *topic.Topic) backlog {
	return backlog{&t.Throttling.Backlog, t, &topicLimits, t.Name()}
}

func ofGroup(c *topic.Consumption) backlog {
	return backlog{&c.Gates, c, &groupLimits, c.Group().Name()}
}

func amount(l settings.Limit) throttle.Amount {
	return throttle.Amount{l.Messages, l.Bytes, time.Duration(l.Age).Milliseconds()}
}

// update compares the backlog with its limits. Without limits it forgets the previous ones. Callers
// hold Mu.
func (b backlog) update(value, marks throttle.Amount, now time.Time) (throttle.Measure, bool) {
	b.Used.Store(marks != throttle.Amount{})
	return b.Gates.Gates.Update(value, marks, now)
}

// check returns the limit that rejects a send now, or nil. throttle.Backlog.Update decides, and
// backlogged.DrainTime estimates RetryAfter. After a throttle, throttle.Backlog.Share decides about
// the share of the client. If by is nil, nothing is sent.
func (b backlog) check(limit settings.Limit, by *Sender, now time.Time) *status.Throttle {
	if limit == (settings.Limit{}) && !b.Used.Load() {
		return nil
	}
	b.Mu.Lock()
	defer b.Mu.Unlock()
	value, marks := b.of.Limited(now), amount(limit)
	if m, on := b.update(value, marks, now); on {
		if by != nil {
			b.Gates.Gates.Wait(by.Client, now)
		}
		rejects := b.state(m, value, marks, now)
		return &rejects.Throttle
	}
	if by == nil || !b.Gates.Gates.Sharing() {
		return nil
	}
	messages, bytes := b.of.Drained(now)
	share, ok := b.Gates.Gates.Share(by.Client, by.Size, value, marks, messages, bytes, now)
	if ok {
		return nil
	}
	return &status.Throttle{
		Limit: FairShare, Subject: b.subject, Unit: rateUnits[share.Measure],
		Value: share.PerSecond, Mark: share.PerSecond, Resume: share.PerSecond, Since: share.Since, RetryAfter: settings.Duration(share.RetryAfter),
	}
}

// states returns the state of each limit that is set.
func (b backlog) states(limit settings.Limit, now time.Time) (out []status.LimitState) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	value, marks := b.of.Limited(now), amount(limit)
	b.update(value, marks, now)
	for m := range throttle.Measures {
		if marks[m] > 0 {
			out = append(out, b.state(m, value, marks, now))
		}
	}
	return out
}

// state returns the state of one limit. Callers hold Mu.
func (b backlog) state(m throttle.Measure, value, marks throttle.Amount, now time.Time) status.LimitState {
	s := b.Gates.Gates.State(m, value, marks)
	out := status.Throttle{Limit: b.names[m], Subject: b.subject, Unit: backlogUnits[m]}
	if s.On {
		drain := b.of.DrainTime(m, s.Resume, now)
		if drain > 0 {
			s.RetryAfter = throttle.Bound(drain)
		}
		expected := b.Gates.Gates.Expect(m, value, marks, drain, now)
		out.ResumesLeast, out.ResumesMost = settings.Duration(expected.Least), settings.Duration(expected.Most)
	}
	return stateOf(out, s)
}
