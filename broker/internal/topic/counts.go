package topic

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/history"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// Recorded is the place of a topic in the history of rates and backlogs, with its counters as of
// the last round. Only the sampler of package broker uses it.
type Recorded struct {
	history.Track
	history.Meter
}

// Written returns all messages that were ever written, including those on their way to the disk.
func (t *Topic) Written() Amount { return Amount{t.messages.Load(), t.bytes.Load()} }

// Accepted returns the messages that were written since the broker was opened.
func (t *Topic) Accepted() Amount {
	return Amount{t.messages.Load() - t.opened.Messages, t.bytes.Load() - t.opened.Bytes}
}

// Before returns the messages before the beginnings of the queues. They were removed, except for
// the leftovers.
func (t *Topic) Before() Amount { return Amount{t.lowMessages.Load(), t.lowBytes.Load()} }

// Leftovers returns the messages before the beginnings of the queues that are still stored for a
// group.
func (t *Topic) Leftovers() Amount { return Amount{t.leftovers.Load(), t.leftoverBytes.Load()} }

// Stored returns the messages on disk, consumed or not. Its bytes include messages on their way to
// the disk.
func (t *Topic) Stored() Amount {
	a := Amount{Bytes: t.bytes.Load() - t.lowBytes.Load() + t.leftoverBytes.Load()}
	for _, q := range t.Queues() {
		a.Messages += q.end.Load() - q.low.Load().Offset - q.removedMessages.Load()
		a.Bytes -= q.removedBytes.Load()
	}
	a.Messages += t.leftovers.Load()
	return a
}

// Backlog returns the backlog of the slowest group, or all messages if the topic has no group.
func (t *Topic) Backlog() Amount {
	subs := t.Subscriptions()
	if len(subs) == 0 {
		all := Amount{Messages: t.messages.Load() - t.lowMessages.Load(), Bytes: t.bytes.Load() - t.lowBytes.Load()}
		if t.hasGaps.Load() {
			for _, q := range t.Queues() {
				all.Messages -= q.removedMessages.Load()
				all.Bytes -= q.removedBytes.Load()
			}
		}
		return all
	}
	var most Amount
	for _, s := range subs {
		l := s.Consumed().Backlog()
		most.Messages, most.Bytes = max(most.Messages, l.Messages), max(most.Bytes, l.Bytes)
	}
	return most
}

// Limited returns the amount that backlog limits apply to: the backlog and the delayed messages,
// and the age of the oldest message at the last look.
func (t *Topic) Limited(now time.Time) throttle.Amount {
	subs := t.Subscriptions()
	l, waiting := t.Backlog(), t.Delayed()
	age := t.ageOf(&t.Throttling.Age, now)
	if len(subs) > 0 {
		age = 0
	}
	for _, s := range subs {
		age = max(age, t.ageOf(&s.Consumed().Age, now))
	}
	return throttle.Amount{l.Messages + waiting.Messages, l.Bytes + waiting.Bytes, age.Milliseconds()}
}

// ageOf returns an age at now. While the wall clock is not trusted, no message is older than it was
// by the time before.
func (t *Topic) ageOf(a *throttle.Age, now time.Time) time.Duration {
	if a.At(now) == 0 {
		return 0
	}
	clock := t.config.Clock.At(now)
	return a.At(clock.Ages())
}

// Drained returns the drain rate, per second, of the group with the largest backlog.
func (t *Topic) Drained(now time.Time) (messages, bytes float64) {
	var of *Consumption
	for _, s := range t.Subscriptions() {
		if c := s.Consumed(); of == nil || c.Backlog().Messages > of.Backlog().Messages {
			of = c
		}
	}
	if of == nil {
		return 0, 0
	}
	return of.Drained(now)
}

// DrainTime estimates how long it takes until the limited amount is down to resume. Zero means that
// there is no estimate.
func (t *Topic) DrainTime(m throttle.Measure, resume int64, now time.Time) time.Duration {
	subs, waiting := t.Subscriptions(), t.Delayed()
	groups := make([]throttle.Consumer, len(subs))
	for i, s := range subs {
		groups[i] = s.Consumed().consumer(now)
	}
	return throttle.UntilAll(m, throttle.Amount{waiting.Messages, waiting.Bytes, 0}, groups, resume)
}

// Duplicates returns the number of sends that got the receipt of an earlier send.
func (t *Topic) Duplicates() int64 { return t.duplicates.Load() }

// CountDuplicate adds one to Duplicates.
func (t *Topic) CountDuplicate() { t.duplicates.Add(1) }

// Removed returns how many messages were removed for a cause since the broker was opened.
func (t *Topic) Removed(cause retention.Cause) int64 { return t.removed[cause].Load() }

// CountRemoved adds to Removed.
func (t *Topic) CountRemoved(cause retention.Cause, messages int64) { t.removed[cause].Add(messages) }

// CountRound adds the result of a round of retention for one queue to the counters.
func (t *Topic) CountRound(c retention.Counts) {
	t.leftovers.Add(c.Leftovers)
	t.leftoverBytes.Add(c.LeftoversBytes)
	t.lowMessages.Add(c.Advanced)
	t.lowBytes.Add(c.AdvancedBytes)
	for i, n := range c.Removed {
		t.removed[i].Add(n)
	}
	t.config.Activity.Note()
}
