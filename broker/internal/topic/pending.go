package topic

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/classes"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
)

var _ pending.Topic = (*Topic)(nil)

// Counters returns the counters of delayed messages and half messages.
func (t *Topic) Counters() *pending.Counters { return &t.pending }

// Delayed returns the messages that wait for their delivery time.
func (t *Topic) Delayed() (a Amount) {
	a.Messages, a.Bytes = t.pending.Delayed()
	return a
}

// Transaction returns the times of transaction checks. Every field is set.
func (t *Topic) Transaction() settings.Transaction {
	return t.Settings().Transaction.Or(*t.config.Transaction.Load())
}

// Schedule implements pending.Topic.
func (t *Topic) Schedule() pending.Schedule {
	c := t.Transaction()
	return pending.Schedule{Timeout: time.Duration(c.Timeout), Interval: time.Duration(c.CheckInterval), Max: c.CheckMax}
}

// Deliver implements pending.Topic.
func (t *Topic) Deliver(w *store.Batch, m *store.Message, now time.Time) (publish func(error)) {
	q := t.Pick("")
	t.Put(w, q, m, now)
	return t.Publish(q)
}

// Remember implements pending.Topic.
func (t *Topic) Remember(m *store.Message, at recent.Location, now time.Time) {
	t.config.IDs.Remember(m, at, t.Settings().IDWindow(), now)
}

// HashID implements pending.Topic.
func (t *Topic) HashID(m *store.Message) { t.config.IDs.HashID(m) }

// Forget implements pending.Topic.
func (t *Topic) Forget(idHash uint64) { t.config.IDs.Forget(idHash) }

// FirstQueue is a topic for the messages of transactions that were given up. They are dead letters,
// and all go to its first queue.
type FirstQueue struct{ *Topic }

// Deliver implements pending.Topic.
func (t FirstQueue) Deliver(w *store.Batch, m *store.Message, now time.Time) (publish func(error)) {
	q := t.Queues()[0]
	t.PutLetter(w, q, m, classes.NewLetter(m), now)
	return t.Publish(q)
}
