package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// delayedBatch is how many delayed messages are removed in one write.
const delayedBatch = 4096

// PurgeTopic removes every message of a topic whose send was answered before,
// be it ready, in flight, waiting for a retry or for its delivery time, and returns what that was, when that
// is on disk. Groups go on behind it; handles of what was in flight are not
// valid any more, and message IDs are forgotten. Offsets go on. Dead letters that
// groups made of the topic's messages stay: they are messages of their own
// topic. 40402 if there is no such topic. If ctx ends, a part may be removed.
func (b *Broker) PurgeTopic(ctx context.Context, name string) (Backlog, error) {
	removed, err := b.purgeTopic(ctx, name)
	return removed, withOp("PurgeTopic", err)
}

func (b *Broker) purgeTopic(ctx context.Context, name string) (removed Backlog, err error) {
	if !b.begin() {
		return removed, closedError()
	}
	defer b.end()
	if err := b.lockAdmin(ctx); err != nil { // a topic that is purged is not deleted meanwhile
		return removed, err
	}
	defer b.unlockAdmin()
	t, err := b.topic(name)
	if err != nil {
		return removed, err
	}
	if !b.retention.lock(ctx) {
		return removed, context.Cause(ctx)
	}
	defer b.retention.unlock()
	delayed, err := b.removeDelayed(ctx, t)
	if err != nil {
		return removed, err
	}
	// What is written before this is on disk, and visible, after it.
	if err := b.store.Messages.Add(func(*store.Batch) {}, nil).WaitContext(ctx); err != nil {
		return removed, storeUnless(ctx, err)
	}
	before := Backlog{Messages: t.keptMessages.Load() - t.lowMessages.Load(), Bytes: t.keptBytes.Load() - t.lowBytes.Load()}
	w, err := b.sweepOf(t, time.Now(), true)
	if err != nil {
		return removed, storeError(err)
	}
	if err := w.run(b); err != nil {
		b.retention.arm(t, time.Now().Add(time.Minute)) // what is left of it
		return removed, storeError(err)
	}
	t.watch()
	removed.Messages = before.Messages - t.keptMessages.Load() + t.lowMessages.Load() + delayed.Messages
	removed.Bytes = before.Bytes - t.keptBytes.Load() + t.lowBytes.Load() + delayed.Bytes
	for i := range w.spans {
		removed.Messages -= w.spans[i].holes.Messages
		removed.Bytes -= w.spans[i].holes.Bytes
	}
	t.removed[removedByPurge].Add(delayed.Messages)
	b.logger.Info("a topic was purged", "topic", name, "messages", removed.Messages, "bytes", removed.Bytes)
	b.retention.reclaimSoon()
	return removed, nil
}

// removeDelayed removes the delayed messages of a topic, forgets its message
// IDs, and returns what was removed.
func (b *Broker) removeDelayed(ctx context.Context, t *topic) (removed Backlog, err error) {
	select {
	case b.delays.moving <- struct{}{}:
		defer func() { <-b.delays.moving }()
	case <-ctx.Done():
		return removed, context.Cause(ctx)
	}
	var from store.Delayed
	for {
		ds, stored, err := b.store.DelayedOf(t.id, from, delayedBatch)
		if err != nil {
			return removed, storeError(err)
		}
		if len(ds) == 0 {
			return removed, nil
		}
		var bytes int64
		for _, m := range stored {
			bytes += m.Size
		}
		if err := b.store.Messages.Add(func(w *store.Batch) {
			for i, d := range ds {
				w.DeleteDelayed(d, stored[i].At)
			}
			t.delayed(w, -int64(len(ds)), -bytes)
			t.recent = recentIDs{}
		}, nil).WaitContext(ctx); err != nil {
			return removed, storeUnless(ctx, err)
		}
		from = ds[len(ds)-1]
		removed.Messages += int64(len(ds))
		removed.Bytes += bytes
		b.retention.noteDelayed(bytes)
	}
}

// storeUnless is an error of the store, unless it is that of ctx; nil for nil.
func storeUnless(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return err
	}
	return storeError(err)
}
