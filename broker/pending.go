package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// openPending prepares the delayed messages and the transactions.
func (b *Broker) openPending() {
	c := pending.Config{
		Store: b.store, Loop: b.maintenance, Logger: b.logger, Topics: b.pendingTopics,
		ShortOfDisk: func() bool { return b.shortOfDisk() != nil },
		Damaged:     func() { b.counters.damaged.Add(1) },
	}
	b.delayed = pending.NewDelayed(c)
	b.transactions = pending.NewTransactions(pending.TransactionsConfig{
		Config: c, GivenUp: b.givenUpTopic, CreateGivenUp: b.createGivenUpTopic, Room: b.roomOnDisk,
	})
}

// pendingTopics returns a function that finds the topic of a number.
func (b *Broker) pendingTopics() func(id uint32) pending.Topic {
	topics := b.topicsByID()
	return func(id uint32) pending.Topic {
		if t := topics[id]; t != nil {
			return t
		}
		return nil
	}
}

// givenUpTopic returns the topic AbandonedTransactions; nil if there is none.
func (b *Broker) givenUpTopic() pending.Topic {
	t, err := b.topic(AbandonedTransactions)
	if err != nil {
		return nil
	}
	return firstQueue{t}
}

func (b *Broker) createGivenUpTopic() error {
	ctx, cancel := b.ownContext()
	defer cancel()
	_, err := b.ownTopic(ctx, AbandonedTransactions, TopicConfig{Queues: 1}, false)
	return err
}

// roomOnDisk waits until there is room for so many bytes. While the disk is short of room, or would
// keep it waiting while all sends are rejected, it returns the throttle.
func (b *Broker) roomOnDisk(ctx context.Context, bytes int64) error {
	if th := b.shortOfDisk(); th != nil {
		return throttledError(*th)
	}
	_, err := b.room(ctx, bytes)
	return err
}

// ID, Name, Deleted, Counters, Schedule, Deliver, Remember, HashID and Forget are those of
// pending.Topic.

func (t *topic) ID() uint32 { return t.id }

func (t *topic) Name() string { return t.name }

func (t *topic) Deleted() bool { return t.deleted.Load() }

func (t *topic) Counters() *pending.Counters { return &t.pending }

func (t *topic) Schedule() pending.Schedule {
	c := t.retention.broker.transactionConfig(t)
	return pending.Schedule{Timeout: time.Duration(c.Timeout), Interval: time.Duration(c.CheckInterval), Max: c.CheckMax}
}

func (t *topic) Deliver(w *store.Batch, m *store.Message, now time.Time) (publish func(error)) {
	q := t.pick("")
	t.put(w, q, m, now)
	return t.publish(q)
}

func (t *topic) Remember(m *store.Message, at recent.Location, now time.Time) {
	t.recent.Remember(m, at, t.config.Load().IDWindow(), now)
}

func (t *topic) HashID(m *store.Message) { t.recent.HashID(m) }

func (t *topic) Forget(idHash uint64) { t.recent.Forget(idHash) }

// firstQueue is a topic that takes messages in its first queue.
type firstQueue struct{ *topic }

// Deliver is that of pending.Topic.
func (t firstQueue) Deliver(w *store.Batch, m *store.Message, now time.Time) (publish func(error)) {
	q := (*t.queues.Load())[0]
	t.put(w, q, m, now)
	return t.publish(q)
}

// delayedBacklog returns the messages of the topic that wait for their delivery time.
func (t *topic) delayedBacklog() (b Backlog) {
	b.Messages, b.Bytes = t.pending.Delayed()
	return b
}

// transactionConfig returns what holds for a topic, with every field set.
func (b *Broker) transactionConfig(t *topic) TransactionConfig {
	return t.config.Load().Transaction.Or(*b.transactionDefaults.Load())
}
