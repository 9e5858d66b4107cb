package pending

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
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
		m.Properties[protocol.PropertyTransactionID] = handle.Transaction(e.ID)
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
	size := state.Size + int64(len(protocol.PropertyTransactionID)+len(handle.Transaction(id))+2) // with the property that the commit adds
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
