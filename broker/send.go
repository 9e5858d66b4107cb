package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/sending"
	"github.com/tidegate/tidegate/transport"
)

// Incoming is a message to store, with the data of its producer.
type Incoming struct {
	*tidegate.Message
	BornAt   time.Time // zero for now
	BornHost string

	// Half makes it a half message, for topics of type TRANSACTION. It is not delivered until
	// [Broker.EndTransaction] commits the transaction in its receipt. Default: false.
	Half bool

	// FirstCheck is the time from the send of a half message to the first check of its transaction,
	// at most 1 h (RocketMQ's orphaned_transaction_recovery_duration). Zero means
	// settings.Transaction.Timeout.
	FirstCheck time.Duration

	// Client identifies the sending client for Options.ClientQuota and for fair shares after a
	// throttle. Messages without it have no quota, and one common share.
	Client string
}

// Send stores messages and returns a result for each, in their order, when the accepted messages
// are on disk. See [Broker.Append].
func (b *Broker) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	in := make([]Incoming, len(msgs))
	for i, m := range msgs {
		in[i] = Incoming{Message: m, BornHost: b.host}
	}
	return b.Append(ctx, in)
}

// Append stores messages of one or several topics. It returns a result for each message, in their
// order, when the accepted messages are on disk. The errors of a message are:
//
//   - 400xx, 413xx, 431xx: the message is invalid
//   - 40402: its topic does not exist
//   - 40014: its topic has another type
//   - tidegate.ErrThrottled: a limit or quota rejects it
//
// An invalid message rejects no other one. If a limit or quota rejects a message with a message
// group, Append also rejects the later messages of that group, so that they keep their order when
// they are sent again. If ctx ends while Append waits for the disk, the messages may be stored. If
// the topic stored the ID of a message within its duplicate window, the result is the first
// receipt, and the message is not stored again. Append keeps no reference to a message.
func (b *Broker) Append(ctx context.Context, msgs []Incoming) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	defer b.counters.countRefused(results)
	if !b.calls.Begin() {
		sending.FailAll(results, fail.Closed())
		return results
	}
	defer b.calls.End()
	if ctx.Err() != nil {
		sending.FailAll(results, context.Cause(ctx))
		return results
	}
	b.sender.Append(ctx, func(i int) sending.Message { return sending.Message(msgs[i]) }, results)
	return results
}
