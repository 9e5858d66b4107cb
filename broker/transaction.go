package broker

import (
	"context"
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// AbandonedTransactions is the topic of half messages that were unresolved after the last check.
// They have the properties of dead letters, with the original topic and the number of checks.
// RocketMQ keeps them in TRANS_CHECK_MAX_TIME_TOPIC, which its clients cannot read.
const AbandonedTransactions = protocol.DeadLetterPrefix + "TRANS_CHECK_MAX_TIME_TOPIC"

var resolutions = map[transport.Resolution]pending.Resolution{
	transport.ResolutionUnknown: pending.Unknown, transport.Commit: pending.Commit, transport.Rollback: pending.Rollback,
}

// EndTransaction ends a transaction and returns when that is on disk. A commit writes the message
// to a queue, exactly once; a rollback removes it; ResolutionUnknown changes nothing. If ctx ends
// before the disk responds, the transaction may end nevertheless. The errors are
//
//   - 40000 for an invalid Resolution,
//   - 40402 if there is no such topic,
//   - 40008 for an empty transaction ID, or one of another message than MessageID,
//   - tidegate.ErrThrottled for a commit while the storage limits reject all sends; the half
//     message stays as it is,
//   - 50001, as in RocketMQ, if there is no such transaction. It may have ended by an earlier call
//     whose response was lost.
func (b served) EndTransaction(ctx context.Context, e serving.TransactionEnd) error {
	return refusal.WithOp("EndTransaction", b.endTransaction(ctx, e))
}

func (b *Broker) endTransaction(ctx context.Context, e serving.TransactionEnd) error {
	if !b.calls.Begin() {
		return refusal.Closed()
	}
	defer b.calls.End()
	if e.TransactionID == "" {
		return refusal.New(protocol.CodeInvalidTransactionID, "transaction ID", "it is empty")
	}
	if e.Resolution < transport.ResolutionUnknown || e.Resolution > transport.Rollback {
		return refusal.New(tidegate.CodeBadRequest, "resolution", "it is %d; give unknown (0), commit (1) or rollback (2)", e.Resolution)
	}
	t, err := b.catalog.Topic(e.Topic)
	if err != nil {
		return err
	}
	id, err := consume.ParseTransactionID(e.TransactionID)
	if err != nil || id.Topic != t.ID() {
		return noTransaction(e)
	}
	err = b.transactions.End(ctx, pending.End{Topic: t, ID: id, MessageID: e.MessageID, Resolution: resolutions[e.Resolution]})
	return endError(ctx, e, err)
}

// endError returns the error of EndTransaction for one of pending.
func endError(ctx context.Context, e serving.TransactionEnd, err error) error {
	if other, ok := errors.AsType[*pending.OtherMessageError](err); ok {
		return refusal.New(protocol.CodeInvalidTransactionID, "transaction ID", "%v", other)
	}
	if unsynced, ok := errors.AsType[*pending.UnsyncedError](err); ok {
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: unsynced.Err,
			Message: "the broker cannot confirm that the end of the transaction is on disk; the transaction may have ended"}
	}
	if throttled, ok := errors.AsType[*tidegate.Error](err); ok {
		return throttled
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pending.ErrNoTransaction):
		return noTransaction(e)
	case errors.Is(err, pending.ErrTopicDeleted):
		return refusal.TopicNotFound(e.Topic)
	case errors.Is(err, tidegate.ErrClosed):
		return refusal.Closed()
	}
	return refusal.StoreUnless(ctx, err)
}

func noTransaction(e serving.TransactionEnd) error {
	return refusal.New(tidegate.CodeInternalServerError, "transaction ID",
		"topic %[2]q has no transaction %.64[1]q: it has ended, or never began (TRANSACTION_DATA_NOT_FOUND)", e.TransactionID, e.Topic)
}
