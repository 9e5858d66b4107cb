package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// A Resolution is what became of a transaction.
type Resolution int

// The resolutions.
const (
	ResolutionUnknown  Resolution = iota // not known yet: the producer is asked again
	ResolutionCommit                     // the message is delivered
	ResolutionRollback                   // the message is removed
)

// A TransactionEnd names a transaction and says what became of it.
type TransactionEnd struct {
	Topic         string
	TransactionID string // as in the receipt of the half message

	// MessageID is the ID of the half message. Empty: it is not compared.
	MessageID string

	Resolution Resolution
}

// A TransactionCheck asks a producer what became of the transaction of a half
// message. The answer is a call of Broker.EndTransaction.
type TransactionCheck struct {
	Message       *tidegate.Message // with its topic; the receiver's own
	TransactionID string
	Number        int // of this check, from 1

	BornAt, StoredAt time.Time
	BornHost         string
}

// SendHalf stores a half message for a topic of type TRANSACTION: nobody
// receives it before EndTransaction commits the transaction that the receipt
// names. firstCheck is Incoming.FirstCheck. Otherwise it is as [Broker.Send].
func (b *Broker) SendHalf(ctx context.Context, m *tidegate.Message, firstCheck time.Duration) transport.SendResult {
	return b.Append(ctx, []Incoming{{Message: m, BornHost: b.host, Half: true, FirstCheck: firstCheck}})[0]
}

// EndTransaction ends a transaction, and returns when that is on disk: committed, its message is in
// a queue, exactly once; rolled back, it is gone. ResolutionUnknown changes nothing. Errors: 40008
// for an empty transaction ID, or one of another message; tidegate.ErrThrottled for a commit while
// the disk is short of room, or would have it wait while all sends are refused: the half message
// stays as it is; 50001, as RocketMQ has it, for a transaction that is not there: it never was, or
// has ended, perhaps by an earlier call of the same end whose answer was lost. If ctx ends while
// the disk is waited for, the transaction may end all the same.
func (b *Broker) EndTransaction(ctx context.Context, e TransactionEnd) error {
	return withOp("EndTransaction", b.endTransaction(ctx, e))
}

func (b *Broker) endTransaction(ctx context.Context, e TransactionEnd) error {
	if !b.begin() {
		return closedError()
	}
	defer b.end()
	if e.TransactionID == "" {
		return newError(tidegate.CodeInvalidTransactionID, "transaction ID", "it is empty")
	}
	if e.Resolution < ResolutionUnknown || e.Resolution > ResolutionRollback {
		return newError(tidegate.CodeBadRequest, "resolution", "it is %d; there are unknown (0), commit (1) and rollback (2)", e.Resolution)
	}
	t, err := b.topic(e.Topic)
	if err != nil {
		return err
	}
	id, err := handle.ParseTransaction(e.TransactionID)
	if err != nil || id.Topic != t.id {
		return noTransaction(e)
	}
	end := ending{topic: t, id: id}
	flight, err := b.writeEnd(ctx, e, &end)
	if flight == nil {
		return err
	}
	if err := flight.WaitContext(ctx); err != nil {
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: err,
			Message: "the broker could not make sure that the end of the transaction is on disk"}
	}
	return end.err
}

// writeEnd adds the end of a transaction to the message log; no flight if there
// is none to add. The half message is claimed until its end is written, but not during
// the wait for room: who purges the topic, or checks what is due, waits for the claim.
func (b *Broker) writeEnd(ctx context.Context, e TransactionEnd, end *ending) (flight *store.Flight, err error) {
	read := b.store.HalfHeader
	if e.Resolution == ResolutionCommit {
		size, err := b.roomToCommit(ctx, e, end.id)
		if err != nil {
			return nil, err
		}
		defer b.store.Messages.Release(size)
		read = b.store.GetHalf
	}
	release, err := b.halves.claim(ctx, end.id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if flight == nil {
			release()
		}
	}()
	m, state, ok, err := read(end.id)
	switch {
	case err != nil:
		return nil, storeError(err)
	case !ok:
		return nil, noTransaction(e)
	case e.MessageID != "" && e.MessageID != m.ID:
		return nil, newError(tidegate.CodeInvalidTransactionID, "transaction ID", "it is of message %.130q, not of %.130q", m.ID, e.MessageID)
	case e.Resolution == ResolutionUnknown:
		return nil, nil //nolint:nilnil // nothing is to be written, and nothing is wrong
	}
	if e.Resolution == ResolutionCommit {
		if m.Properties == nil {
			m.Properties = map[string]string{}
		}
		m.Properties[tidegate.PropertyTransactionID] = e.TransactionID
	}
	end.state, end.message = state, &m
	flight = b.store.Messages.Add(func(w *store.Batch) {
		if end.topic.deleted.Load() {
			end.err = topicNotFound(end.topic.name)
			return
		}
		end.write(w, e.Resolution, time.Now())
	}, func(err error) {
		release()
		end.publish(err)
	})
	if flight == nil {
		return nil, closedError()
	}
	return flight, nil
}

// roomToCommit waits until there is room for a half message in a queue, and returns what is set
// aside of it.
func (b *Broker) roomToCommit(ctx context.Context, e TransactionEnd, id store.HalfID) (bytes int64, err error) {
	state, ok, err := b.store.HalfState(id)
	if err != nil {
		return 0, storeError(err)
	}
	if !ok {
		return 0, noTransaction(e)
	}
	if th := b.shortOfDisk(); th != nil {
		return 0, throttledError(*th)
	}
	size := state.Size + int64(len(tidegate.PropertyTransactionID)+len(e.TransactionID)+2) // with the property that the commit adds
	_, err = b.room(ctx, size)
	return size, err
}

// An ending is one transaction on its way to its end.
type ending struct {
	topic   *topic
	id      store.HalfID
	state   store.HalfState
	message *store.Message
	to      *topic // with queue, where the message is delivered; nil if it is not
	queue   *queue
	err     error
}

// write ends the transaction. Only called within the message log's Add, by who
// has claimed the half message.
func (e *ending) write(w *store.Batch, r Resolution, now time.Time) {
	t := e.topic
	w.DeleteHalf(e.id, e.state)
	t.halves.waiting.Add(-1)
	if r != ResolutionCommit {
		t.halves.rolledBack.Add(1)
		t.recent.Forget(e.state.IDHash)
		return
	}
	t.halves.committed.Add(1)
	e.to, e.queue = t, t.pick("")
	t.put(w, e.queue, e.message, now)
}

// publish makes the message visible, if it is delivered.
func (e *ending) publish(err error) {
	if e.to != nil {
		e.to.publish(e.queue)(err)
	}
}

func noTransaction(e TransactionEnd) error {
	return newError(tidegate.CodeInternalServerError, "transaction ID",
		"there is no transaction %.64q in topic %q: it has ended, or never began (TRANSACTION_DATA_NOT_FOUND)", e.TransactionID, e.Topic)
}
