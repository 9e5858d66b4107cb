package topic

import (
	"math"
	"time"

	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/settings"
)

// RetentionPolicy returns the rules of retention that apply now.
func (t *Topic) RetentionPolicy() retention.Policy {
	c := t.Settings()
	return retention.Policy{
		MaxAge: t.maxAge(), MaxBytes: c.Retention.Bytes, Consumed: c.Retention.Consumed,
		Window: c.IDWindow(), WindowMessages: 2 * recent.Capacity,
	}
}

// maxAge returns the age at which messages are removed; retention.Forever if they are not.
func (t *Topic) maxAge() time.Duration {
	d := time.Duration(t.Settings().Retention.Time)
	switch {
	case d == 0 && !IsDeadLetter(t.Name()):
		return settings.DefaultRetention
	case d <= 0:
		return retention.Forever
	}
	return d
}

// WakeRetention brings the next round of retention forward to a time.
func (t *Topic) WakeRetention(at time.Time) {
	want := at.UnixNano()
	for {
		before := t.retentionDue.Load()
		if before != 0 && before <= want {
			return
		}
		if t.retentionDue.CompareAndSwap(before, want) {
			break
		}
	}
	t.config.Retention.Wake(at.Round(0)) // stored times are of the wall clock
}

// GroupConsumed is called after a group has consumed messages. It brings the next round of
// retention forward if the round can remove them.
func (t *Topic) GroupConsumed(now time.Time) {
	if t.watched.Load() {
		t.WakeRetention(now.Add(retention.Pause))
	}
}

// Added is called after messages were added. It sets the time of the next round of retention if
// none is set, or if the topic has more bytes than its settings allow.
func (t *Topic) Added() {
	c := t.Settings()
	over := c.Retention.Bytes > 0 && t.HeldBytes() > c.Retention.Bytes
	if t.retentionDue.Load() != 0 && !over {
		return
	}
	now := time.Now()
	if at, ok := t.RetentionPolicy().Expires(now); ok {
		t.WakeRetention(at)
	} else {
		t.retentionDue.CompareAndSwap(0, math.MaxInt64) // no round is ever due
	}
	if over {
		t.WakeRetention(t.soon(now))
	}
}

// HeldBytes returns the size of the bodies from the beginnings of the queues on.
func (t *Topic) HeldBytes() int64 {
	n := t.bytes.Load() - t.lowBytes.Load()
	for _, q := range t.Queues() {
		n -= q.removedBytes.Load()
	}
	return n
}

// soon returns now, or a little later if the last round was just before.
func (t *Topic) soon(now time.Time) time.Time {
	if at := time.Unix(0, t.retentionRan.Load()).Add(retention.Pause); at.After(now) {
		return at
	}
	return now
}

// NextRound returns the time of the next round of retention. ok is false if none is due.
func (t *Topic) NextRound() (at time.Time, ok bool) {
	due := t.retentionDue.Load()
	return time.Unix(0, due), due != 0 && due != math.MaxInt64
}

// RoundIsSet reports whether the time of the next round is set, or no round is ever due.
func (t *Topic) RoundIsSet() bool { return t.retentionDue.Load() != 0 }

// BeginRound notes the start of a round, and clears the time of the next one.
func (t *Topic) BeginRound(now time.Time) {
	t.retentionDue.Store(0)
	t.retentionRan.Store(now.UnixNano())
}

// KeepExpired notes the number of messages that are too old and are kept because the wall clock is
// not trusted. It returns the number before.
func (t *Topic) KeepExpired(n int64) (before int64) { return t.kept.Swap(n) }

// KeptExpired returns the number that the last round of retention noted with KeepExpired.
func (t *Topic) KeptExpired() int64 { return t.kept.Load() }

// Watch determines whether GroupConsumed brings the next round forward.
func (t *Topic) Watch() { t.watched.Store(t.Settings().Retention.Consumed || t.leftovers.Load() > 0) }

// HasGaps reports whether messages may have been removed from the middle of a queue.
func (t *Topic) HasGaps() bool { return t.hasGaps.Load() }

// ExpectGaps sets HasGaps.
func (t *Topic) ExpectGaps() { t.hasGaps.Store(true) }
