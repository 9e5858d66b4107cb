package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// delayedBatch is how many delayed messages are removed in one write.
const delayedBatch = 4096

// PurgeTopic removes all messages of a topic that were stored before the call: ready ones, those in
// flight, those that wait for a retry or their delivery time, and half messages. It returns their
// number and bytes once the removal is on disk. Groups continue with the next message, and offsets
// are not used again. Receipt handles and transaction IDs of removed messages are no longer valid,
// and the duplicate window forgets their message IDs. Dead letters of the topic's messages stay,
// because they are messages of another topic. The error's code is 40402 if there is no such topic.
// If ctx ends, a part of the messages may be removed.
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
	release, err := b.retention.task.Hold(ctx)
	if err != nil {
		return removed, err
	}
	defer release()
	// First, so that the IDs of what is sent meanwhile, and stays, are remembered.
	var last, lastDelayed uint64
	if err := b.store.Messages.Add(func(w *store.Batch) {
		last, lastDelayed = b.halves.number, b.delays.number
		t.forgetAll(w)
	}, nil).WaitContext(ctx); err != nil {
		return removed, storeUnless(ctx, err)
	}
	waiting, err := b.removeHalves(ctx, t, last) // what is committed meanwhile is in a queue then
	if err != nil {
		return removed, err
	}
	delayed, err := b.removeDelayed(ctx, t, lastDelayed)
	if err != nil {
		return removed, err
	}
	waiting.Messages += delayed.Messages
	waiting.Bytes += delayed.Bytes
	// What is written before this is on disk, and visible, after it.
	if err := b.store.Messages.Add(func(*store.Batch) {}, nil).WaitContext(ctx); err != nil {
		return removed, storeUnless(ctx, err)
	}
	before := Backlog{Messages: t.leftovers.Load() - t.lowMessages.Load(), Bytes: t.leftoverBytes.Load() - t.lowBytes.Load()}
	r, err := b.beginRound(t, time.Now(), true)
	if err != nil {
		return removed, storeError(err)
	}
	if err := r.run(b); err != nil {
		b.retention.wake(t, time.Now().Add(time.Minute)) // what is left of it
		return removed, storeError(err)
	}
	t.watch()
	removed.Messages = before.Messages - t.leftovers.Load() + t.lowMessages.Load() + waiting.Messages
	removed.Bytes = before.Bytes - t.leftoverBytes.Load() + t.lowBytes.Load() + waiting.Bytes
	for i := range r.Queues {
		removed.Messages -= r.Queues[i].Gaps.Messages
		removed.Bytes -= r.Queues[i].Gaps.Bytes
	}
	t.removed[retention.Purged].Add(waiting.Messages)
	b.logger.Info("a topic was purged", "topic", name, "messages", removed.Messages, "bytes", removed.Bytes)
	b.retention.reclaimSoon()
	return removed, nil
}

// removeDelayed removes the delayed messages of a topic that were written up to last, which was
// delays.number once the log had written what is on disk now, and returns what was
// removed. Others are sent, delivered and recalled meanwhile, after each write.
func (b *Broker) removeDelayed(ctx context.Context, t *topic, last uint64) (removed Backlog, err error) {
	// What comes meanwhile lies behind this one, but for a clock that was set back. So there is an
	// end.
	var from, newest store.StoredDelayed
	if err := b.store.NewestDelayed(t.id, time.Time{}, func(d *store.StoredDelayed) bool {
		newest = *d
		return false
	}); err != nil {
		return removed, storeError(err)
	}
	for {
		n, to, err := b.removeSomeDelayed(ctx, t, from, newest, last)
		removed.Messages += n.Messages
		removed.Bytes += n.Bytes
		if err != nil || to == from {
			return removed, err
		}
		from = to
		b.retention.freed.AddUnqueued(store.Delays, n.Bytes)
	}
}

// removeSomeDelayed removes some that were stored after from, up to newest, and returns how far it
// came; from if there was none.
func (b *Broker) removeSomeDelayed(ctx context.Context, t *topic, from, newest store.StoredDelayed, last uint64) (removed Backlog, to store.StoredDelayed, err error) {
	release, err := b.delays.task.Hold(ctx)
	if err != nil {
		return removed, from, err
	}
	defer release()
	ds, err := b.store.DelayedOf(t.id, from, delayedBatch)
	if err != nil {
		return removed, from, storeError(err)
	}
	if i := slices.IndexFunc(ds, func(d store.StoredDelayed) bool { return d.StoredAfter(newest) }); i >= 0 {
		ds = ds[:i]
	}
	if len(ds) == 0 {
		return removed, from, nil
	}
	if err := b.store.Messages.Add(func(w *store.Batch) {
		since := b.delays.number - last // how many were written after last, with the numbers after it
		for _, d := range ds {
			if d.Number-last-1 < since {
				continue
			}
			if !d.Gone {
				removed.Messages++
				removed.Bytes += d.Size
			}
			w.DeleteDelayed(d.Delayed, d.Stored)
		}
		t.delayed(w, -removed.Messages, -removed.Bytes)
	}, nil).Wait(); err != nil { // whatever becomes of ctx: nothing is moved before this is written
		return Backlog{}, from, storeError(err)
	}
	return removed, ds[len(ds)-1], nil
}

// removeHalves removes the half messages of a topic up to a number, and returns what was removed.
// Who ends one of their transactions afterwards is told that there is none.
func (b *Broker) removeHalves(ctx context.Context, t *topic, last uint64) (removed Backlog, err error) {
	for last > 0 {
		var ids []store.HalfID
		if err := b.store.HalvesOf(t.id, last, func(id store.HalfID, _ store.HalfState) bool {
			ids = append(ids, id)
			return len(ids) < checkBatch
		}); err != nil {
			return removed, storeError(err)
		}
		if len(ids) == 0 {
			break
		}
		last = ids[len(ids)-1].Number - 1
		n, err := b.removeSomeHalves(ctx, t, ids)
		if err != nil {
			return removed, err
		}
		removed.Messages += n.Messages
		removed.Bytes += n.Bytes
		b.retention.freed.AddUnqueued(store.Halves, n.Bytes)
	}
	return removed, nil
}

func (b *Broker) removeSomeHalves(ctx context.Context, t *topic, ids []store.HalfID) (removed Backlog, err error) {
	h := b.halves
	resume, err := h.task.Hold(ctx)
	if err != nil {
		return removed, err
	}
	defer resume()
	var claims []func()
	release := func() {
		for _, r := range claims {
			r()
		}
	}
	states := make(map[store.HalfID]store.HalfState, len(ids))
	for _, id := range ids {
		r, err := h.claim(ctx, id)
		if err != nil {
			release()
			return removed, err
		}
		claims = append(claims, r)
		state, ok, err := b.store.HalfState(id)
		if err != nil && !store.IsDamage(err) {
			release()
			return removed, storeError(err)
		}
		if ok || err != nil {
			states[id] = state
			removed.Messages++
			removed.Bytes += state.Size
		}
	}
	flight := b.store.Messages.Add(func(w *store.Batch) {
		if t.deleted.Load() { // with its half messages
			removed = Backlog{}
			return
		}
		for id, state := range states {
			w.DeleteHalf(id, state)
			t.halves.waiting.Add(-1)
			t.recent.Forget(state.IDHash)
		}
	}, func(error) { release() })
	if flight == nil {
		release()
	}
	return removed, storeUnless(ctx, flight.WaitContext(ctx))
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
