package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
)

const _ = uint(recent.MaxQueues - MaxQueues) // the memory of IDs has room for every queue

// newRecentIDs returns the memory of a topic's message IDs.
func (r *retentionTasks) newRecentIDs(topic uint32) *duplicates.Memory {
	return duplicates.NewMemory(topic, func() store.IDKey { return r.broker.idKey }, func(at time.Time) { r.broker.forgetting.Wake(at) })
}

// nextOffset returns the offset that the next message of a queue will have; 0 if there is no such
// queue. Only called within the message log's Add.
func (t *topic) nextOffset(queue uint16) int64 {
	if queues := *t.queues.Load(); int(queue) < len(queues) {
		return queues[queue].nextOffset
	}
	return 0
}

// recoverIDs has a topic remember the IDs of the last while. Nothing else runs yet.
func (b *Broker) recoverIDs(t *topic, now time.Time) error {
	from := duplicates.Source{Store: b.store, Logger: b.logger, Topic: t.name, Window: t.config.Load().IDWindow(), Now: now}
	for _, q := range *t.queues.Load() {
		from.Ends = append(from.Ends, q.nextOffset)
	}
	if err := t.recent.Restore(from); err != nil {
		return err
	}
	if at := t.recent.ExpiresAt(from.Window, now); !at.IsZero() {
		b.forgetting.Wake(at)
	}
	return nil
}

// indexRest writes what no record of the index has yet: the broker closes, and
// nothing else runs any more. A full disk is spared it: without it opening reads the messages.
func (b *Broker) indexRest() {
	if b.store.DiskFull() != nil {
		return
	}
	now := time.Now()
	b.store.Messages.Add(func(w *store.Batch) {
		for _, t := range b.topicsByID() {
			t.recent.WriteRest(w, t.config.Load().IDWindow(), now)
		}
	}, nil) // closing the store commits it
}

// forget forgets the IDs of all topics that are older than the window: memory
// and disk come back where nothing is sent any more.
func (b *Broker) forget(context.Context, time.Time) (next time.Time, err error) {
	topics := b.topicsByID()
	if err := b.store.Messages.Add(func(w *store.Batch) {
		now := time.Now()
		for _, t := range topics {
			if t.deleted.Load() {
				continue
			}
			if at := t.recent.Expire(w, t.config.Load().IDWindow(), now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}, nil).Wait(); err != nil {
		return time.Time{}, nil //nolint:nilerr // the store is broken: nothing is sent any more
	}
	return next, nil
}
