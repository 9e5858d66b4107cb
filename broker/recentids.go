package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// recoverIDs has a topic remember the IDs of the last while. Nothing else runs yet.
func (b *Broker) recoverIDs(t *topic.Topic, now time.Time) error {
	from := duplicates.Source{Store: b.store, Logger: b.logger, Topic: t.Name(), Window: t.Settings().IDWindow(), Now: now}
	for _, q := range t.Queues() {
		from.Ends = append(from.Ends, q.Next().Offset)
	}
	if err := t.IDs().Restore(from); err != nil {
		return err
	}
	if at := t.IDs().ExpiresAt(from.Window, now); !at.IsZero() {
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
			t.IDs().WriteRest(w, t.Settings().IDWindow(), now)
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
			if t.Deleted() {
				continue
			}
			if at := t.IDs().Expire(w, t.Settings().IDWindow(), now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}, nil).Wait(); err != nil {
		return time.Time{}, nil //nolint:nilerr // the store is broken: nothing is sent any more
	}
	return next, nil
}
