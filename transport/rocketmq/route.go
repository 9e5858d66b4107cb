package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

const (
	// refreshGap is the shortest time between two route queries that follow from errors.
	refreshGap = time.Second

	// parallelRefreshes bounds the concurrent route queries of a refresh.
	parallelRefreshes = 8
)

// A topic is the client's state of one topic.
type topic struct {
	name string
	next atomic.Uint64 // round robin over the queues, for sends without a message group
	poll atomic.Uint64 // round robin over the brokers, for receives from any queue
	used atomic.Bool   // since the last refresh

	mu       sync.Mutex
	route    *conn.Route // the last valid route; nil before the first
	inflight *fetching   // nil if no query is under way
	tried    time.Time   // time of the last query
	lost     bool        // a server contradicted the route after the last query
	unused   int         // refreshes in a row without use
	groups   map[string]assignment

	places conn.Places
}

// A fetching is a route query under way. route and err are valid once done is closed.
type fetching struct {
	done  chan struct{}
	route *conn.Route
	err   *tidegate.Error
}

// route returns the known route of the topic, however old. If there is none, it queries the route,
// or waits for a query under way. If ctx awaits a connection, route repeats the query about once a
// second while the server is unreachable.
func (c *Client) route(ctx context.Context, op, name string) (*topic, *conn.Route, *tidegate.Error) {
	t, err := c.topic(op, name)
	if err != nil {
		return nil, nil, err
	}
	if transport.AwaitsConnection(ctx) {
		if cause := c.regain(ctx, t); cause != nil {
			return t, nil, c.noRoute(name, cause)
		}
	}
	if r := t.known(); r != nil {
		return t, r, nil
	}
	for {
		r, err := c.askRoute(ctx, op, t)
		if err == nil || !transport.AwaitsConnection(ctx) || err.Code != 0 || !errors.Is(err, tidegate.ErrUnavailable) || ctx.Err() != nil {
			return t, r, err
		}
		cause := c.sleep(ctx, refreshGap-time.Since(t.triedAt()))
		if cause == nil {
			cause = c.access.Await(ctx)
		}
		if cause != nil {
			e := c.noRoute(name, fmt.Errorf("%w: %w", cause, err.Err))
			e.NotConnected = e.NotConnected && err.NotConnected
			return t, nil, e
		}
	}
}

// topic returns the state of a topic and marks the topic as used.
func (c *Client) topic(op, name string) (*topic, *tidegate.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, closedError(op, name)
	}
	t := c.topics[name]
	if t == nil {
		t = &topic{name: name}
		c.topics[name] = t
	}
	t.used.Store(true)
	return t, nil
}

// askRoute queries the topic's route once.
func (c *Client) askRoute(ctx context.Context, op string, t *topic) (*conn.Route, *tidegate.Error) {
	f := c.fetch(t)
	if f == nil {
		return nil, closedError(op, t.name)
	}
	select {
	case <-f.done:
		if f.err != nil {
			e := *f.err // the waiting calls share the error
			return nil, &e
		}
		return f.route, nil
	case <-ctx.Done():
		return nil, c.noRoute(t.name, context.Cause(ctx))
	}
}

// noRoute returns the error of a call whose ctx ended while it waited for the topic's route.
func (c *Client) noRoute(topic string, cause error) *tidegate.Error {
	return &tidegate.Error{Op: opQueryRoute, Subject: topic, Endpoint: c.access.Key, Err: cause,
		NotConnected: c.access.Link.Load().Missing()}
}

// triedAt returns the time of the last route query.
func (t *topic) triedAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tried
}

// consumerRoute is route for consumers: its query does not wait for the connect backoff.
func (c *Client) consumerRoute(ctx context.Context, op, name string) (*topic, *conn.Route, *tidegate.Error) {
	if !c.hasRoute(name) {
		c.access.Knock(ctx)
	}
	return c.route(ctx, op, name)
}

func (c *Client) hasRoute(name string) bool {
	c.mu.Lock()
	t := c.topics[name]
	c.mu.Unlock()
	if t == nil {
		return false
	}
	return t.known() != nil
}

// known returns the last valid route, or nil before the first.
func (t *topic) known() *conn.Route {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.route
}

// fetch starts a query for the topic's route, unless one is under way. It returns nil if the client
// is closed.
func (c *Client) fetch(t *topic) *fetching {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inflight != nil {
		return t.inflight
	}
	f := &fetching{done: make(chan struct{})}
	ok := c.spawn(func() {
		f.route, f.err = c.queryRoute(t.name)
		t.mu.Lock()
		t.inflight, t.lost = nil, false
		moved := false
		if f.err == nil {
			if t.route != nil && c.access.KeepsQueues() && t.route.Same(f.route) {
				f.route = t.route // the assignments that it led to are valid
			}
			moved = t.route != nil && !slices.EqualFunc(t.route.Readers, f.route.Readers, conn.Broker.Same)
			t.route = f.route
			t.places.Note(f.route, c.opts.RouteRefresh)
		}
		hasRoute := t.route != nil
		t.mu.Unlock()
		if f.err != nil && hasRoute {
			c.opts.Logger.Debug("rocketmq: route not refreshed; the old one remains in use", "topic", t.name, "error", f.err)
		}
		if moved {
			c.wakeTopic(t.name)
		}
		close(f.done)
	})
	if !ok {
		return nil
	}
	t.inflight, t.tried = f, time.Now()
	return f
}

// doubt queries the topic's route again in the background, because a call that used the route
// failed. The old route remains in use until the query succeeds: a server that restarts reports
// existing topics as unknown for a while.
func (c *Client) doubt(t *topic) {
	t.mu.Lock()
	again := t.inflight == nil && time.Since(t.tried) >= refreshGap
	t.mu.Unlock()
	if again {
		c.fetch(t)
	}
}

// lose is doubt for a route that a server contradicted.
func (c *Client) lose(t *topic) {
	t.mu.Lock()
	t.lost = true
	t.mu.Unlock()
	c.doubt(t)
}

// regain blocks while the topic's route is lost, until the next query has ended. Queries are at
// least a second apart. Without the wait, several attempts in a row would fail with the same route.
func (c *Client) regain(ctx context.Context, t *topic) error {
	for {
		t.mu.Lock()
		lost, f, due := t.lost, t.inflight, time.Until(t.tried.Add(refreshGap))
		t.mu.Unlock()
		if !lost || c.isClosed() {
			return nil
		}
		if f == nil && due > 0 {
			if err := c.sleep(ctx, due); err != nil {
				return err
			}
			continue
		}
		if f = c.fetch(t); f == nil {
			return nil
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// refreshRoutes keeps the routes of the topics in use fresh until Close.
func (c *Client) refreshRoutes() {
	ticker := time.NewTicker(c.opts.RouteRefresh)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-c.ctx.Done():
			return
		}
		c.dropEndpoints()
		slots := make(chan struct{}, parallelRefreshes)
		for _, t := range c.topicsInUse() {
			select {
			case slots <- struct{}{}:
			case <-c.ctx.Done():
				return
			}
			c.spawn(func() {
				defer func() { <-slots }()
				if f := c.fetch(t); f != nil {
					<-f.done // ends with the client's ctx
				}
			})
		}
	}
}

// topicsInUse returns the topics used since the last call. It removes topics that were not used for
// long or never had a route.
func (c *Client) topicsInUse() []*topic {
	c.mu.Lock()
	all := make([]*topic, 0, len(c.topics))
	for _, t := range c.topics {
		all = append(all, t)
	}
	c.mu.Unlock()
	var list []*topic
	var forget []string
	for _, t := range all { // lock order: c.mu is never held while t.mu is taken
		if t.used.Swap(false) {
			list = append(list, t)
		}
		t.mu.Lock()
		t.unused++
		if len(list) > 0 && list[len(list)-1] == t {
			t.unused = 0
		}
		if t.inflight == nil && (t.unused >= conn.ForgetAfter || t.unused > 0 && t.route == nil) {
			forget = append(forget, t.name)
		}
		t.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range forget {
		delete(c.topics, name)
	}
	return list
}

// dropEndpoints closes connections to servers that no route and no session has used for a while. A
// session exists until its deliveries are settled. Without dropEndpoints, connections to old
// addresses would accumulate.
func (c *Client) dropEndpoints() {
	named := map[*conn.Server]bool{c.access: true}
	c.mu.Lock()
	topics := slices.Collect(maps.Values(c.topics))
	c.mu.Unlock()
	for _, t := range topics {
		t.mu.Lock()
		r := t.route
		t.mu.Unlock()
		if r == nil {
			continue
		}
		for _, q := range r.ByGroup {
			named[q.Server] = true
		}
		for _, b := range r.Readers {
			named[b.Server] = true
		}
	}
	c.mu.Lock()
	for _, s := range c.sessions {
		named[s.ep] = true
	}
	var gone []*conn.Server
	for key, e := range c.endpoints {
		if e.Unused++; named[e] {
			e.Unused = 0
		}
		if e.Unused >= conn.ForgetAfter {
			delete(c.endpoints, key)
			gone = append(gone, e)
		}
	}
	c.mu.Unlock()
	for _, e := range gone {
		e.Link.Load().Close()
	}
}

func (c *Client) queryRoute(name string) (*conn.Route, *tidegate.Error) {
	res, _, err := call(c.ctx, c, request{ep: c.access, id: c.id, op: opQueryRoute, subject: name},
		rmqpb.MessagingServiceClient.QueryRoute,
		&rmqpb.QueryRouteRequest{Topic: c.resource(name), Endpoints: c.access.PB})
	switch {
	case err != nil && c.isClosed():
		return nil, closedError(opQueryRoute, name) // the end of c.ctx is not the end of the caller's ctx
	case err != nil:
		return nil, err
	}
	return c.newRoute(name, res.GetMessageQueues())
}

// sleep waits for d. If ctx ends first, it returns the cause. If the client is closed first, it
// returns nil, because the next call returns ErrClosed.
func (c *Client) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// newRoute returns a route of the queues in a response.
func (c *Client) newRoute(name string, mqs []*rmqpb.MessageQueue) (*conn.Route, *tidegate.Error) {
	r, unusable := conn.NewRoute(mqs, c.endpointOf)
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
func (c *Client) endpointOf(b *rmqpb.Broker) (*conn.Server, error) {
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
	res, _, err := call(ctx, c, request{ep: c.access, id: c.identity(role{group: group, push: true}), op: op, subject: topicName},
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
func (c *Client) isFIFO(r *conn.Route, group string) bool {
	if len(r.Readers) == 0 {
		return false
	}
	c.mu.Lock()
	s := c.sessions[sessionKey{r.Readers[0].Server.Key, role{group: group, push: true}}]
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
	route   *conn.Route
	fifo    bool // the group was a FIFO group
	kept    bool // the server keeps the queues of a group, see conn.Server.KeepsQueues
	numbers []int
	used    time.Time // the last call of Queues
}

// assigned returns the queues of the group if the server assigned them under this route. On
// RocketMQ each refresh of the route gives another one, so queues are requested as often as routes:
// both change for the same reasons. A server that keeps the queues (keeps) has one route for as
// long as its contents are the same. Queues that another server assigned without keeping them, for
// example a RocketMQ that used the address before, are not valid then.
func (t *topic) assigned(group string, r *conn.Route, fifo, keeps bool) ([]int, bool) {
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
	case err.Code == tidegate.CodeTopicNotFound, err.Code == protocol.CodeMessagePropertyConflict:
		c.lose(t)
	case errors.Is(err, tidegate.ErrUnavailable) && err.Code == 0:
		c.doubt(t)
	}
}

// refuse rejects the messages whose type the topic does not accept: it sets their results and
// returns the indexes of the others. It returns nil if the topic accepts all messages. If the known
// route is older than a second, refuse queries it again first, because the type of the topic may
// have changed.
func (c *Client) refuse(ctx context.Context, t *topic, r *conn.Route, msgs []*tidegate.Message, results []transport.SendResult) (rest []int, some bool) {
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
		results[i].Err = fail(opSend, m.Topic, protocol.CodeMessagePropertyConflict,
			fmt.Sprintf("the message has the type %s, and the topic accepts %s%s", wire.TypeOf(m), r.Types(), conn.Remedy(wire.TypeOf(m), r.Accepts)))
	}
	return rest, len(rest) < len(msgs)
}

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
