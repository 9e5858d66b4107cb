package rocketmq

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

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
		return nil, closedError(opQueryRoute, name)
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
	fifo := c.isFIFO(r, group)
	if numbers, ok := t.assigned(group, r, fifo, c.access.KeepsQueues()); ok {
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
	t.assign(group, assignment{r, fifo, c.access.KeepsQueues(), numbers, time.Now()}, 2*c.opts.SettingsSync)
	return numbers, nil
}

// isFIFO reports whether the group is a FIFO group by the settings that the server pushed last. It
// returns false if there are none.
func (c *Client) isFIFO(r *routing.Route, group string) bool {
	if len(r.Readers) == 0 {
		return false
	}
	c.mu.Lock()
	s := c.sessions[sessionKey{r.Readers[0].Server.Key, role{group, true}}]
	c.mu.Unlock()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings.GetSubscription().GetFifo()
}

// An assignment has the queues of a group, as the server assigned them while the topic had the
// route.
type assignment struct {
	route   *routing.Route
	fifo    bool // the group was a FIFO group
	kept    bool // the server keeps the queues of a group, see remote.Server.KeepsQueues
	numbers []int
	used    time.Time // the last call of Queues
}

// assigned returns the queues of the group if the server assigned them under this route. On
// RocketMQ each refresh of the route gives another one, so queues are requested as often as routes:
// both change for the same reasons. A server that keeps the queues (keeps) has one route for as
// long as its contents are the same. Queues that another server assigned without keeping them, for
// example a RocketMQ that used the address before, are not valid then.
func (t *topic) assigned(group string, r *routing.Route, fifo, keeps bool) ([]int, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.groups[group]
	if !ok || a.route != r || a.fifo != fifo || keeps && !a.kept {
		return nil, false
	}
	a.used = time.Now()
	t.groups[group] = a
	return slices.Clone(a.numbers), true
}

// assign stores the queues of the group. It forgets those of earlier routes and of groups without a
// call for the duration idle, so the map has only groups in use.
func (t *topic) assign(group string, a assignment, idle time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups == nil {
		t.groups = map[string]assignment{}
	}
	maps.DeleteFunc(t.groups, func(_ string, old assignment) bool {
		return old.route != a.route || a.used.Sub(old.used) >= idle
	})
	a.numbers = slices.Clone(a.numbers)
	t.groups[group] = a
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
