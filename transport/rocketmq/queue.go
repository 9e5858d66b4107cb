package rocketmq

import (
	"context"
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/routing"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// newRoute makes a route of the queues that a server named.
func (c *Client) newRoute(name string, mqs []*rmqpb.MessageQueue) (*routing.Route, *tidegate.Error) {
	r, unusable := routing.NewRoute(mqs, c.endpointOf)
	if r != nil {
		return r, nil
	}
	if errors.Is(unusable, tidegate.ErrClosed) {
		return nil, closedError("QueryRoute", name)
	}
	text := "written or read"
	if unusable != nil {
		text += ": " + unusable.Error()
	}
	return nil, noQueue("QueryRoute", name, c.access.Key, text)
}

// noQueue makes the error of a route that names no queue for what is to be done.
// It is no refusal, since it passes: a server leaves out a master that is down
// or starts while its copies are still named, and operators take permissions
// away from one that they are about to stop.
func noQueue(op, subject, endpoint, todo string) *tidegate.Error {
	return &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Err: tidegate.ErrUnavailable,
		Message: "the server names no queue, on a master, that can be " + todo}
}

// endpointOf returns where a broker is: what it says, unless the client was
// told to stay with its own endpoints or it says nothing.
func (c *Client) endpointOf(b *rmqpb.Broker) (*remote.Server, error) {
	if c.opts.FixedEndpoint || len(b.GetEndpoints().GetAddresses()) == 0 {
		return c.access, nil
	}
	return c.endpoint(b.GetEndpoints())
}

// Queues returns the numbers of the topic's queues. Only Receive of this client understands them:
// for a topic on several brokers they include the broker.
func (c *Client) Queues(ctx context.Context, group, topicName string) ([]int, error) {
	const op = "QueryAssignment"
	if err := tidegate.ValidateGroup(group); err != nil {
		return nil, err
	}
	t, r, err := c.consumerRoute(ctx, op, topicName)
	if err != nil {
		return nil, err
	}
	c.access.Knock(ctx)
	res, _, err := call(ctx, c, request{ep: c.access, id: c.identity(role{group, true}), op: op, subject: topicName},
		rmqpb.MessagingServiceClient.QueryAssignment,
		&rmqpb.QueryAssignmentRequest{Topic: c.resource(topicName), Group: c.resource(group), Endpoints: c.access.PB})
	if err != nil {
		c.doubtIf(t, err)
		return nil, err
	}
	numbers := t.places.Numbers(r, res.GetAssignments())
	if len(numbers) == 0 {
		c.doubt(t)
		return nil, noQueue(op, topicName, c.access.Key, "read")
	}
	return numbers, nil
}

// doubtIf doubts the topic's route if the error may come from a wrong one.
func (c *Client) doubtIf(t *topic, err *tidegate.Error) {
	switch {
	case err.Code == tidegate.CodeTopicNotFound, err.Code == tidegate.CodeMessagePropertyConflict:
		c.lose(t)
	case errors.Is(err, tidegate.ErrUnavailable) && err.Code == 0:
		c.doubt(t)
	}
}
