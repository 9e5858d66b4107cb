package rocketmq

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// takes reports whether the topic takes messages of m's type. A message with another
// fault is left to the server, which knows which of its faults counts.
func (r *route) takes(m *tidegate.Message) bool {
	return r.accepts == nil || r.accepts[rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED] || r.accepts[typeOf(m)] ||
		m.Validate(math.MaxInt) != nil
}

// refuse fills in the results of the messages whose type the topic does not take, and
// returns the indexes of the others; nil if those are all. A route older than a second
// is asked for again first: the topic's type may have changed.
func (c *Client) refuse(ctx context.Context, t *topic, r *route, msgs []*tidegate.Message, results []transport.SendResult) (rest []int, some bool) {
	if r.accepts == nil || !slices.ContainsFunc(msgs, func(m *tidegate.Message) bool { return !r.takes(m) }) {
		return nil, false
	}
	if time.Since(t.triedAt()) >= refreshGap {
		if fresh, err := c.askRoute(ctx, opSend, t); err == nil {
			r = fresh
		}
	}
	for i, m := range msgs {
		if r.takes(m) {
			rest = append(rest, i)
			continue
		}
		results[i].Err = fail(opSend, m.Topic, tidegate.CodeMessagePropertyConflict,
			fmt.Sprintf("the message is of type %s, and the topic takes %s%s", typeOf(m), r.types(), remedy(typeOf(m), r.accepts)))
	}
	return rest, len(rest) < len(msgs)
}

// types returns the names of the types that the topic takes.
func (r *route) types() string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(r.accepts)) {
		names = append(names, kind.String())
	}
	return strings.Join(names, ", ")
}

// remedy returns what to do about a message of the wrong type.
func remedy(is rmqpb.MessageType, accepts map[rmqpb.MessageType]bool) string {
	switch {
	case is == rmqpb.MessageType_NORMAL && accepts[rmqpb.MessageType_FIFO]:
		return "; set MessageGroup, or create the topic as NORMAL"
	case is == rmqpb.MessageType_NORMAL && accepts[rmqpb.MessageType_DELAY]:
		return "; set DeliverAt, or create the topic as NORMAL"
	case accepts[rmqpb.MessageType_TRANSACTION] && len(accepts) == 1:
		return "; send it as part of a transaction, or create the topic as " + is.String()
	}
	return "; create the topic as " + is.String()
}
