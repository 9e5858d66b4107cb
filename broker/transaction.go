package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/transport"
)

// AbandonedTransactions is the topic of the half messages that were given up
// after the last check, with the properties of dead letters: which topic they
// were sent to, how often their producers were asked. (RocketMQ keeps
// them in TRANS_CHECK_MAX_TIME_TOPIC, which its clients cannot read.)
const AbandonedTransactions = tidegate.DeadLetterPrefix + "TRANS_CHECK_MAX_TIME_TOPIC"

// PropertyCheckTimes is RocketMQ's name of the property that tells how
// often a transaction was checked: in checks and in abandoned transactions.
const PropertyCheckTimes = "TRANSACTION_CHECK_TIMES"

// A Resolution is what became of a transaction.
type Resolution int

// The resolutions.
const (
	ResolutionUnknown  Resolution = iota // not known yet: the producer is asked again
	ResolutionCommit                     // the message is delivered
	ResolutionRollback                   // the message is removed
)

var resolutions = map[Resolution]pending.Resolution{
	ResolutionUnknown: pending.Unknown, ResolutionCommit: pending.Commit, ResolutionRollback: pending.Rollback,
}

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
	return fail.WithOp("EndTransaction", b.endTransaction(ctx, e))
}

func (b *Broker) endTransaction(ctx context.Context, e TransactionEnd) error {
	if !b.begin() {
		return fail.Closed()
	}
	defer b.end()
	if e.TransactionID == "" {
		return fail.New(tidegate.CodeInvalidTransactionID, "transaction ID", "it is empty")
	}
	if e.Resolution < ResolutionUnknown || e.Resolution > ResolutionRollback {
		return fail.New(tidegate.CodeBadRequest, "resolution", "it is %d; there are unknown (0), commit (1) and rollback (2)", e.Resolution)
	}
	t, err := b.catalog.Topic(e.Topic)
	if err != nil {
		return err
	}
	id, err := handle.ParseTransaction(e.TransactionID)
	if err != nil || id.Topic != t.ID() {
		return noTransaction(e)
	}
	err = b.transactions.End(ctx, pending.End{Topic: t, ID: id, MessageID: e.MessageID, Resolution: resolutions[e.Resolution]})
	return endError(ctx, e, err)
}

// endError returns the error of EndTransaction for one of pending.
func endError(ctx context.Context, e TransactionEnd, err error) error {
	if other, ok := errors.AsType[*pending.OtherMessageError](err); ok {
		return fail.New(tidegate.CodeInvalidTransactionID, "transaction ID", "%v", other)
	}
	if unsynced, ok := errors.AsType[*pending.UnsyncedError](err); ok {
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: unsynced.Err,
			Message: "the broker could not make sure that the end of the transaction is on disk"}
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
		return fail.TopicNotFound(e.Topic)
	case errors.Is(err, tidegate.ErrClosed):
		return fail.Closed()
	}
	return fail.StoreUnless(ctx, err)
}

// OnTransactionCheck has f called with every check of a transaction. f passes it on to a producer
// of the message's topic and reports whether it could; if it could not, the next function is asked,
// in the order in which they were added. It may call the broker and may be called by several
// goroutines at once, and must not wait for long: other checks wait behind it. After remove no new
// call begins; one under way is not waited for, by Close neither. If f panics the process ends.
func (b *Broker) OnTransactionCheck(f func(TransactionCheck) bool) (remove func()) {
	return b.transactions.OnCheck(func(c pending.Check) bool { return f(TransactionCheck(c)) })
}

func noTransaction(e TransactionEnd) error {
	return fail.New(tidegate.CodeInternalServerError, "transaction ID",
		"there is no transaction %.64q in topic %q: it has ended, or never began (TRANSACTION_DATA_NOT_FOUND)", e.TransactionID, e.Topic)
}
