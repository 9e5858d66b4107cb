package catalog

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// recoverIDs restores the message IDs of a topic's duplicate window. Nothing else runs yet.
func (c *Catalog) recoverIDs(t *topic.Topic, now time.Time) error {
	from := duplicates.Source{Store: c.config.Store, Logger: c.config.Logger, Topic: t.Name(), Window: t.Settings().IDWindow(), Now: now}
	for _, q := range t.Queues() {
		from.Ends = append(from.Ends, q.Next().Offset)
	}
	if err := t.IDs().Restore(from); err != nil {
		return err
	}
	if at := t.IDs().ExpiresAt(from.Window, now); !at.IsZero() {
		c.forgetting.Wake(at)
	}
	return nil
}

// IndexRest writes the message IDs that the index on disk does not have yet. The broker closes, and
// nothing else runs any more. It writes nothing to a full disk: the next Open then reads the
// messages instead.
func (c *Catalog) IndexRest() {
	if c.config.Store.DiskFull() != nil {
		return
	}
	now := time.Now()
	c.config.Store.Messages.Add(func(w *store.Batch) {
		for _, t := range c.TopicsByID() {
			t.IDs().WriteRest(w, t.Settings().IDWindow(), now)
		}
	}, nil) // closing the store commits it
}

// ForgetsAt returns the time at which message IDs are next forgotten, and zero if there is none.
func (c *Catalog) ForgetsAt() time.Time { return c.forgetting.Due() }

// forget forgets the message IDs of all topics that are older than the duplicate window. Topics
// that receive no messages free their memory and disk space in this way.
func (c *Catalog) forget(context.Context, time.Time) (next time.Time, err error) {
	topics := c.TopicsByID()
	clock := c.config.Env.Clock.Look()
	now := clock.Ages()
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		for _, t := range topics {
			if t.Deleted() {
				continue
			}
			if at := t.IDs().Expire(w, t.Settings().IDWindow(), now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}, nil).Wait(); err != nil {
		return time.Time{}, nil //nolint:nilerr // the store is broken: it accepts no message any more
	}
	if clock.Distrusted && !next.IsZero() {
		next = clock.Until // until then no ID is older than it was
	}
	return next, nil
}
