package broker

import (
	"context"

	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// openPending prepares the delayed messages and the transactions.
func (b *Broker) openPending() {
	c := pending.Config{
		Store: b.store, Loop: b.maintenance, Logger: b.logger, Topics: b.pendingTopics,
		ShortOfDisk: func() bool { return b.limits.ShortOfDisk() != nil },
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
	return topic.FirstQueue{Topic: t}
}

func (b *Broker) createGivenUpTopic() error {
	return b.createOwnTopic(AbandonedTransactions, TopicConfig{Queues: 1}, false)
}

// roomOnDisk waits until there is room for so many bytes. While the disk is short of room, or would
// keep it waiting while all sends are rejected, it returns the throttle.
func (b *Broker) roomOnDisk(ctx context.Context, bytes int64) error {
	if th := b.limits.ShortOfDisk(); th != nil {
		return limits.Rejected(*th)
	}
	_, err := b.limits.Room(ctx, bytes)
	return err
}

// newTopic returns an empty topic.
func (b *Broker) newTopic(name string, id uint32, c TopicConfig) *topic.Topic {
	return topic.New(topic.Config{
		ID: id, Name: name, Retention: b.retention.Task(), Transaction: &b.transactionDefaults,
		IDs: duplicates.NewMemory(id, func() store.IDKey { return b.idKey }, b.forgetting.Wake),
	}, c)
}
