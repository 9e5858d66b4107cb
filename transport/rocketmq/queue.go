package rocketmq

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/routing"
)

// newRoute returns a route of the queues in a response.
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

// noQueue returns the error of a route without a suitable queue. The error is transient: a server
// leaves out a master that is down or starting while its replicas are still listed, and operators
// remove the permissions of a server that they are about to stop.
func noQueue(op, subject, endpoint, todo string) *tidegate.Error {
	return &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Err: tidegate.ErrUnavailable,
		Message: "the route has no queue on a master that can be " + todo}
}

// endpointOf returns the server of a broker in a route. With Options.FixedEndpoint, or if the route
// has no address, that is the client's own endpoint.
func (c *Client) endpointOf(b *rmqpb.Broker) (*remote.Server, error) {
	if c.opts.FixedEndpoint || len(b.GetEndpoints().GetAddresses()) == 0 {
		return c.access, nil
	}
	return c.endpoint(b.GetEndpoints())
}

// Queues returns the numbers of the topic's queues. They are valid only for Receive of this client,
// because for a topic on several brokers each number also identifies the broker.
func (c *Client) Queues(ctx context.Context, group, topicName string) ([]int, error) {
	const op = "QueryAssignment"
	if err := tidegate.ValidateGroup(group); err != nil {
		return nil, err
	}
	t, r, err := c.consumerRoute(ctx, op, topicName)
	if err != nil {
		return nil, err
	}
	if numbers, ok := t.assigned(group, r); ok {
		return numbers, nil
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
	t.assign(group, r, numbers)
	return numbers, nil
}

// An assignment has the queues of a group, as the server assigned them while the topic had the
// route.
type assignment struct {
	route   *routing.Route
	numbers []int
}

// assigned returns the queues of the group if the server assigned them under this route. Queues
// and routes change for the same reasons, so both are requested in the same interval.
func (t *topic) assigned(group string, r *routing.Route) ([]int, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.groups[group]
	return slices.Clone(a.numbers), ok && a.route == r
}

// assign stores the queues of the group. It forgets those of earlier routes, so the map has only
// groups that asked under this one.
func (t *topic) assign(group string, r *routing.Route, numbers []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups == nil {
		t.groups = map[string]assignment{}
	}
	maps.DeleteFunc(t.groups, func(_ string, a assignment) bool { return a.route != r })
	t.groups[group] = assignment{r, slices.Clone(numbers)}
}

// doubtIf refreshes the topic's route if a wrong route may be the cause of the error.
func (c *Client) doubtIf(t *topic, err *tidegate.Error) {
	switch {
	case err.Code == tidegate.CodeTopicNotFound, err.Code == tidegate.CodeMessagePropertyConflict:
		c.lose(t)
	case errors.Is(err, tidegate.ErrUnavailable) && err.Code == 0:
		c.doubt(t)
	}
}
