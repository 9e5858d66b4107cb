package pending

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// DelayedBatch is how many delayed messages are removed in one write.
const DelayedBatch = 4096

// Remove removes the delayed messages of a topic that were written up to last. last is a result of
// Last; the write of the message log in which the caller obtained last must be complete. Remove
// calls removed after each write. Other messages are sent, delivered and recalled between two
// writes.
func (d *Delayed) Remove(ctx context.Context, t Topic, last uint64, removed func(messages, bytes int64)) error {
	// Messages that are stored meanwhile lie behind newest, unless the clock was set back. So the
	// loop ends.
	var from, newest store.StoredDelayed
	if err := d.Store.NewestDelayed(t.ID(), time.Time{}, func(d *store.StoredDelayed) bool {
		newest = *d
		return false
	}); err != nil {
		return err
	}
	for {
		n, to, err := d.removeSome(ctx, t, from, newest, last)
		if err != nil || to == from {
			return err
		}
		from = to
		removed(n.Messages, n.Bytes)
	}
}

// removeSome removes one batch of the messages that were stored after from, up to newest. It
// returns the last message of the batch, and from if there was none.
func (d *Delayed) removeSome(ctx context.Context, t Topic, from, newest store.StoredDelayed, last uint64) (removed store.Waiting, to store.StoredDelayed, err error) {
	release, err := d.Task.Hold(ctx)
	if err != nil {
		return removed, from, err
	}
	defer release()
	ds, err := d.Store.DelayedOf(t.ID(), from, DelayedBatch)
	if err != nil {
		return removed, from, err
	}
	if i := slices.IndexFunc(ds, func(d store.StoredDelayed) bool { return d.StoredAfter(newest) }); i >= 0 {
		ds = ds[:i]
	}
	if len(ds) == 0 {
		return removed, from, nil
	}
	if err := d.Store.Messages.Add(func(w *store.Batch) {
		since := d.number - last // how many were written after last, with the numbers after it
		for _, m := range ds {
			if m.Number-last-1 < since {
				continue
			}
			if !m.Gone {
				removed.Messages++
				removed.Bytes += m.Size
			}
			w.DeleteDelayed(m.Delayed, m.Stored)
		}
		addDelayed(w, t, -removed.Messages, -removed.Bytes)
	}, nil).Wait(); err != nil { // also after the end of ctx: no message is moved before this is written
		return store.Waiting{}, from, err
	}
	return removed, ds[len(ds)-1], nil
}

// Remove removes the half messages of a topic up to a number. It calls removed after each write. A
// later End of their transactions returns ErrNoTransaction.
func (x *Transactions) Remove(ctx context.Context, t Topic, last uint64, removed func(messages, bytes int64)) error {
	for last > 0 {
		var ids []store.HalfID
		if err := x.Store.HalfMessagesOf(t.ID(), last, func(id store.HalfID, _ store.HalfState) bool {
			ids = append(ids, id)
			return len(ids) < CheckBatch
		}); err != nil {
			return err
		}
		if len(ids) == 0 {
			break
		}
		last = ids[len(ids)-1].Number - 1
		n, err := x.removeSome(ctx, t, ids)
		if err != nil {
			return err
		}
		removed(n.Messages, n.Bytes)
	}
	return nil
}

func (x *Transactions) removeSome(ctx context.Context, t Topic, ids []store.HalfID) (removed store.Waiting, err error) {
	resume, err := x.Task.Hold(ctx)
	if err != nil {
		return removed, err
	}
	defer resume()
	var claims claims
	states := make(map[store.HalfID]store.HalfState, len(ids))
	for _, id := range ids {
		release, err := x.Claim(ctx, id)
		if err != nil {
			claims.release()
			return removed, err
		}
		claims = append(claims, release)
		state, ok, err := x.Store.HalfState(id)
		if err != nil && !store.IsDamage(err) {
			claims.release()
			return removed, err
		}
		if ok || err != nil {
			states[id] = state
			removed.Messages++
			removed.Bytes += state.Size
		}
	}
	write := x.Store.Messages.Add(func(w *store.Batch) {
		if t.Deleted() { // with its half messages
			removed = store.Waiting{}
			return
		}
		for id, state := range states {
			w.DeleteHalf(id, state)
			t.Counters().Half.Add(-1)
			t.Forget(state.IDHash)
		}
	}, func(error) { claims.release() })
	if write == nil {
		claims.release()
	}
	return removed, write.WaitContext(ctx)
}
