package pending

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Errors of End.
var (
	// ErrNoTransaction: the transaction has ended, or never began.
	ErrNoTransaction = errors.New("the transaction does not exist")

	// ErrTopicDeleted: the topic was deleted meanwhile.
	ErrTopicDeleted = errors.New("the topic of the transaction was deleted")
)

// An OtherMessageError is returned if End.MessageID is not the ID of the transaction's message.
type OtherMessageError struct {
	Named, Is string // message IDs
}

// Error returns both IDs.
func (e *OtherMessageError) Error() string {
	return fmt.Sprintf("the transaction belongs to message %.130q, not to %.130q", e.Is, e.Named)
}

// An UnsyncedError is returned if the end of a transaction may or may not be on disk.
type UnsyncedError struct{ Err error }

// Error returns the text of Err.
func (e *UnsyncedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UnsyncedError) Unwrap() error { return e.Err }

// A Resolution is the outcome of a transaction.
type Resolution int

// The resolutions.
const (
	Unknown  Resolution = iota // nothing changes
	Commit                     // the message is delivered
	Rollback                   // the message is removed
)

// An End names a transaction and its resolution.
type End struct {
	Topic      Topic
	ID         store.HalfID
	MessageID  string // empty: it is not compared
	Resolution Resolution
}

// End ends a transaction. It blocks until the end is on disk. Besides the errors above it returns
// tidegate.ErrClosed if the store is closed, the errors of Room, and the cause of ctx.
func (x *Transactions) End(ctx context.Context, e End) error {
	write, deleted, err := x.writeEnd(ctx, e)
	if write == nil {
		return err
	}
	if err := write.WaitContext(ctx); err != nil {
		return &UnsyncedError{err}
	}
	if *deleted {
		return ErrTopicDeleted
	}
	return nil
}

// writeEnd adds the end of a transaction to the message log. write is nil if there is nothing to
// add. The half message is claimed until its end is written. It is not claimed during the wait for
// room, because purges of the topic and checks wait for the claim.
func (x *Transactions) writeEnd(ctx context.Context, e End) (write *store.PendingWrite, deleted *bool, err error) {
	read := x.Store.HalfHeader
	if e.Resolution == Commit {
		size, err := x.roomToCommit(ctx, e.ID)
		if err != nil {
			return nil, nil, err
		}
		defer x.Store.Messages.Release(size)
		read = x.Store.GetHalf
	}
	release, err := x.Claim(ctx, e.ID)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if write == nil {
			release()
		}
	}()
	m, state, ok, err := read(e.ID)
	switch {
	case err != nil:
		return nil, nil, err
	case !ok:
		return nil, nil, ErrNoTransaction
	case e.MessageID != "" && e.MessageID != m.ID:
		return nil, nil, &OtherMessageError{Named: e.MessageID, Is: m.ID}
	case e.Resolution == Unknown:
		return nil, nil, nil
	}
	if e.Resolution == Commit {
		if m.Properties == nil {
			m.Properties = map[string]string{}
		}
		m.Properties[protocol.PropertyTransactionID] = consume.TransactionID(e.ID)
	}
	deleted = new(bool)
	var publish func(error)
	write = x.Store.Messages.Add(func(w *store.Batch) {
		if *deleted = e.Topic.Deleted(); !*deleted {
			publish = e.write(w, state, &m, time.Now())
		}
	}, func(err error) {
		release()
		if publish != nil {
			publish(err)
		}
	})
	if write == nil {
		return nil, nil, tidegate.ErrClosed
	}
	return write, deleted, nil
}

// roomToCommit waits until the message log has room for the committed message, and returns the
// reserved bytes.
func (x *Transactions) roomToCommit(ctx context.Context, id store.HalfID) (bytes int64, err error) {
	state, ok, err := x.Store.HalfState(id)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, ErrNoTransaction
	}
	size := state.Size + int64(len(protocol.PropertyTransactionID)+len(consume.TransactionID(id))+2) // with the property that the commit adds
	return size, x.Room(ctx, size)
}

// write ends the transaction. The returned function makes the message visible; it is nil for a
// rollback. Only called within the message log's Add, by the claimant of the half message.
func (e *End) write(w *store.Batch, state store.HalfState, m *store.Message, now time.Time) (publish func(error)) {
	c := e.Topic.Counters()
	w.DeleteHalf(e.ID, state)
	c.Half.Add(-1)
	if e.Resolution != Commit {
		c.RolledBack.Add(1)
		e.Topic.Forget(state.IDHash)
		return nil
	}
	c.Committed.Add(1)
	return e.Topic.Deliver(w, m, now)
}

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
