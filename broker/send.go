package broker

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/transport"
)

// Send stores messages and returns a result for each, in their order, when the accepted messages
// are on disk. See Append.
func (b *Broker) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	in := make([]serving.Incoming, len(msgs))
	for i, m := range msgs {
		in[i] = serving.Incoming{Message: m, BornHost: b.host}
	}
	return serve(b).Append(ctx, in)
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
func (b served) Append(ctx context.Context, msgs []serving.Incoming) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	defer b.counters.countRefused(results)
	if !b.calls.Begin() {
		engine.FailAll(results, refusal.Closed())
		return results
	}
	defer b.calls.End()
	if ctx.Err() != nil {
		engine.FailAll(results, context.Cause(ctx))
		return results
	}
	b.sender.Append(ctx, msgs, results)
	return results
}
