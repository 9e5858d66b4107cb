package rocketmq

import (
	"context"
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

var (
	_ transport.Pinger   = (*Client)(nil)
	_ transport.Recaller = (*Client)(nil)
)

// anyTopic is the topic that a ping without topics queries. It need not exist.
const anyTopic = "tidegate_ping"

// Ping implements transport.Pinger. It requests the routes of the topics from the client's own
// endpoints. Without topics it requests that of a topic that need not exist.
func (c *Client) Ping(ctx context.Context, topics ...string) error {
	ctx = transport.AwaitConnection(ctx)
	if len(topics) == 0 {
		err := c.ping(ctx, anyTopic)
		if errors.Is(err, tidegate.ErrNotFound) || errors.Is(err, tidegate.ErrForbidden) {
			return nil // the server responded and accepted the credentials
		}
		return err
	}
	for _, name := range topics {
		if err := tidegate.ValidateTopic(name); err != nil {
			return err
		}
		if err := c.ping(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) ping(ctx context.Context, topic string) error {
	_, _, err := call(ctx, c, request{ep: c.access, id: c.id, op: opQueryRoute, subject: topic}, rmqpb.MessagingServiceClient.QueryRoute,
		&rmqpb.QueryRouteRequest{Topic: c.resource(topic), Endpoints: c.access.PB})
	if err != nil {
		return err
	}
	return nil
}

// Recall implements transport.Recaller. RocketMQ 5.2 does not support recalls; the error then has
// CodeNotImplemented. Later versions need the setting recallMessageEnable, which is false by
// default, although their receipts have recall handles; without it the error has CodeForbidden.
func (c *Client) Recall(ctx context.Context, topic, handle string) (messageID string, err error) {
	if handle == "" {
		return "", fail(opRecall, topic, tidegate.CodeBadRequest,
			"the recall handle is empty; give Receipt.RecallHandle of a message with a delivery time")
	}
	res, _, e := call(ctx, c, request{ep: c.access, id: c.id, op: opRecall, subject: topic}, rmqpb.MessagingServiceClient.RecallMessage,
		&rmqpb.RecallMessageRequest{Topic: c.resource(topic), RecallHandle: handle})
	if e != nil {
		return "", e
	}
	return res.GetMessageId(), nil
}
