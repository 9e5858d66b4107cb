package rocketmq

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/routing"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
)

// refuse rejects the messages whose type the topic does not accept: it sets their results and
// returns the indexes of the others. It returns nil if the topic accepts all messages. If the known
// route is older than a second, refuse queries it again first, because the type of the topic may
// have changed.
func (c *Client) refuse(ctx context.Context, t *topic, r *routing.Route, msgs []*tidegate.Message, results []transport.SendResult) (rest []int, some bool) {
	if r.Accepts == nil || !slices.ContainsFunc(msgs, func(m *tidegate.Message) bool { return !r.Takes(m) }) {
		return nil, false
	}
	if time.Since(t.triedAt()) >= refreshGap {
		if fresh, err := c.askRoute(ctx, opSend, t); err == nil {
			r = fresh
		}
	}
	for i, m := range msgs {
		if r.Takes(m) {
			rest = append(rest, i)
			continue
		}
		results[i].Err = fail(opSend, m.Topic, tidegate.CodeMessagePropertyConflict,
			fmt.Sprintf("the message has the type %s, and the topic accepts %s%s", wire.TypeOf(m), r.Types(), routing.Remedy(wire.TypeOf(m), r.Accepts)))
	}
	return rest, len(rest) < len(msgs)
}
