package rocketmq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

const opSyncLite = "SyncLiteSubscription"

var _ transport.LiteSubscriber = (*Client)(nil)

// A liteConsumer is a consumer of lite topics. Servers keep its set of lite topics by its client ID,
// which its sessions with all servers share. RocketMQ removes the set when the Telemetry stream of
// the client ID ends, so the client has it too, and sends it when a session opens.
type liteConsumer struct {
	transport.LiteConsumer
	users int           // calls of SyncLite and ServeLite; guarded by Client.mu
	turn  chan struct{} // of capacity 1; full while a request with a change is under way, for one order on all servers
	kick  chan struct{} // of capacity 1; makes ServeLite look for ended

	mu      sync.Mutex          // never held across a wait
	version int64               // of the last request
	topics  map[string]struct{} // the set, as the servers have accepted it
	adding  map[string]struct{} // lite topics of a request that is under way
	ended   []string            // taken by a server, and not reported by ServeLite
}

// liteRole returns the role of a consumer of lite topics.
func liteRole(group, id string) role { return role{group: group, push: true, lite: id} }

// anyLite is the ID of the session of a group that receives from lite topics, while no consumer of the
// group has a session. RocketMQ accepts no other kind of client of such a group.
const anyLite = "any"

// liteRoleOf returns the role of a consumer of lite topics of the group and parent for requests that
// any of them can send to the server: one that has a session with the server, or one that this client
// knows. A consumer of the group for another parent, which RocketMQ rejects, is none of them.
func (c *Client) liteRoleOf(endpoint, group, parent string) role {
	c.mu.Lock()
	defer c.mu.Unlock()
	as := liteRole(group, anyLite)
	for known, l := range c.lites {
		if known.group != group || l.Topic != parent {
			continue
		}
		as = known
		if s := c.sessions[sessionKey{endpoint, known}]; s != nil && s.isReady() {
			return known
		}
	}
	return as
}

// liteTopic returns the lite topic of a delivery for a request that settles it, nil if it has none. A
// dead letter has the lite topic of its origin, but is in a queue of the dead letter topic.
func liteTopic(d *tidegate.Delivery) *string {
	if d.LiteTopic == "" || strings.HasPrefix(d.Topic, protocol.DeadLetterPrefix) {
		return nil
	}
	return &d.LiteTopic
}

// useLite returns the state of a consumer. The caller calls releaseLite after its use.
func (c *Client) useLite(op string, of transport.LiteConsumer) (*liteConsumer, error) {
	if err := tidegate.ValidateGroup(of.Group); err != nil {
		return nil, err
	}
	if err := tidegate.ValidateTopic(of.Topic); err != nil {
		return nil, err
	}
	if of.ID == "" || len(of.ID) > maxLiteID || slices.ContainsFunc([]byte(of.ID), func(b byte) bool { return b <= ' ' || b > '~' }) {
		return nil, fail(op, of.Topic, tidegate.CodeBadRequest,
			fmt.Sprintf("the ID of the consumer of lite topics is %.100q; give 1 to %d printable ASCII characters without spaces", of.ID, maxLiteID))
	}
	as := liteRole(of.Group, of.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, closedError(op, of.Topic)
	}
	l := c.lites[as]
	if l == nil {
		l = &liteConsumer{LiteConsumer: of, turn: make(chan struct{}, 1), kick: make(chan struct{}, 1), version: time.Now().UnixMilli()}
		c.lites[as] = l
	}
	if l.Topic != of.Topic {
		return nil, fail(op, of.Topic, tidegate.CodeBadRequest,
			fmt.Sprintf("the consumer %q of group %q has lite topics of %q; give another ID to consumers of other topics", of.ID, of.Group, l.Topic))
	}
	l.users++
	return l, nil
}

// maxLiteID bounds the ID of a consumer of lite topics, which is a part of its client ID.
const maxLiteID = 128

func (c *Client) releaseLite(l *liteConsumer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.users--
	c.dropLiteLocked(liteRole(l.Group, l.ID))
}

// dropLiteLocked forgets a consumer of lite topics without calls and sessions. c.mu is held.
func (c *Client) dropLiteLocked(as role) {
	if l := c.lites[as]; l == nil || l.users > 0 {
		return
	}
	for key := range c.sessions {
		if key.role == as {
			return
		}
	}
	delete(c.lites, as)
}

// SyncLite implements transport.LiteSubscriber. It sends the change to every server of the topic, in
// a session of the consumer, and fails with the first error. The change has no effect on the servers
// that returned an error. The calls for a consumer run one after the other.
//
// A server without lite topics, such as RocketMQ before 5.5.0, gives CodeNotImplemented. RocketMQ
// 5.5.0 leaves the number of lite topics of a consumer to its clients, so SyncLite itself compares it
// with the limit that the server has pushed. RocketMQ ignores LiteStart.Time, and counts
// LiteStart.Last from the position of the group; SyncLite rejects both with CodeNotImplemented. On
// RocketMQ the group must exist and be bound to the parent, and names of lite topics have ASCII
// letters, digits, '-' and '_' only.
//
// RocketMQ forgets the lite topics of a consumer when the connection is lost. The client sends them
// again at once when it has a new one.
func (c *Client) SyncLite(ctx context.Context, s transport.LiteSync) error {
	l, err := c.useLite(opSyncLite, s.LiteConsumer)
	if err != nil {
		return err
	}
	defer c.releaseLite(l)
	option, err := offsetOption(s)
	if err != nil {
		return err
	}
	if s.Action != transport.LiteRemove {
		for _, name := range s.Topics {
			if err := tidegate.ValidateLiteTopic(name); err != nil {
				return err
			}
		}
	}
	if err := l.take(ctx, c.ctx); err != nil {
		return &tidegate.Error{Op: opSyncLite, Subject: s.Topic, Err: err}
	}
	defer l.free()
	if e := c.syncLite(ctx, l, s, option); e != nil {
		return e
	}
	return nil
}

// take waits for the turn of a request. life is that of the client.
func (l *liteConsumer) take(ctx, life context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-life.Done():
		return errClosed
	}
}

func (l *liteConsumer) free() { <-l.turn }

// syncLite sends a change to all servers of the topic. The caller has the turn.
func (c *Client) syncLite(ctx context.Context, l *liteConsumer, s transport.LiteSync, option *rmqpb.OffsetOption) *tidegate.Error {
	t, rt, err := c.consumerRoute(ctx, opSyncLite, s.Topic)
	if err != nil {
		return err
	}
	var servers []*conn.Server
	for _, b := range rt.Readers {
		if !slices.Contains(servers, b.Server) {
			servers = append(servers, b.Server)
		}
	}
	if len(servers) == 0 {
		c.doubt(t)
		return noQueue(opSyncLite, s.Topic, c.access.Key, "read")
	}
	change := l.begin(s, option)
	errs := make([]*tidegate.Error, len(servers))
	var wg sync.WaitGroup
	for i, server := range servers {
		wg.Go(func() { errs[i] = c.syncLiteOn(ctx, server, l, change) })
	}
	wg.Wait()
	l.end(s, slices.Contains(errs, nil))
	for _, err := range errs {
		if err != nil {
			c.doubtIf(t, err)
			return err
		}
	}
	return nil
}

// A liteChange is a change that is under way.
type liteChange struct {
	transport.LiteSync
	option  *rmqpb.OffsetOption
	fresh   []string // lite topics that the consumer does not have yet
	all     []string // all lite topics of the change, each once
	version int64
}

// begin notes a change that is about to be sent.
func (l *liteConsumer) begin(s transport.LiteSync, option *rmqpb.OffsetOption) *liteChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version += maxLiteRequests
	change := &liteChange{LiteSync: s, option: option, version: l.version}
	if s.Action == transport.LiteRemove {
		change.all = s.Topics
		return change
	}
	l.adding = map[string]struct{}{}
	for _, name := range s.Topics {
		if _, twice := l.adding[name]; twice {
			continue
		}
		l.adding[name] = struct{}{}
		change.all = append(change.all, name)
		if _, ok := l.topics[name]; !ok {
			change.fresh = append(change.fresh, name)
		}
	}
	l.ended = slices.DeleteFunc(l.ended, func(name string) bool { _, ok := l.adding[name]; return ok })
	return change
}

// maxLiteRequests is the largest number of requests of a change to one server.
const maxLiteRequests = 2

// requests returns the requests of a change. RocketMQ takes a start, checks names, and ends the
// subscriptions of other consumers in an exclusive group only with PARTIAL_ADD. It moves the group
// also in a lite topic that the consumer has already. So the new lite topics have a request of their
// own. A tidegate broker applies the start to the new ones alone.
func (s *liteChange) requests(tidegate bool) (list []*rmqpb.SyncLiteSubscriptionRequest) {
	add := func(action rmqpb.LiteSubscriptionAction, names []string, option *rmqpb.OffsetOption) {
		list = append(list, &rmqpb.SyncLiteSubscriptionRequest{
			Action: action, LiteTopicSet: names, Version: new(s.version + int64(len(list))), OffsetOption: option,
		})
	}
	switch {
	case s.Action == transport.LiteRemove:
		add(rmqpb.LiteSubscriptionAction_PARTIAL_REMOVE, s.all, nil)
	case s.Action == transport.LiteAdd && (tidegate || s.option == nil):
		add(rmqpb.LiteSubscriptionAction_PARTIAL_ADD, s.all, s.option)
	case s.Action == transport.LiteSet && tidegate:
		add(rmqpb.LiteSubscriptionAction_COMPLETE_ADD, s.all, s.option)
	default:
		if len(s.fresh) > 0 {
			add(rmqpb.LiteSubscriptionAction_PARTIAL_ADD, s.fresh, s.option)
		}
		if s.Action == transport.LiteSet {
			add(rmqpb.LiteSubscriptionAction_COMPLETE_ADD, s.all, nil)
		} else if known := slices.DeleteFunc(slices.Clone(s.all), func(name string) bool { return slices.Contains(s.fresh, name) }); len(known) > 0 {
			add(rmqpb.LiteSubscriptionAction_PARTIAL_ADD, known, nil)
		}
	}
	return list
}

// end stores the set after a change that a server has accepted.
func (l *liteConsumer) end(s transport.LiteSync, accepted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.topics == nil {
		l.topics = map[string]struct{}{}
	}
	switch {
	case !accepted:
	case s.Action == transport.LiteSet:
		l.topics = l.adding
	case s.Action == transport.LiteAdd:
		maps.Copy(l.topics, l.adding)
	default:
		for _, name := range s.Topics {
			delete(l.topics, name)
		}
	}
	l.adding = nil
}

// syncLiteOn sends a change to a server.
func (c *Client) syncLiteOn(ctx context.Context, server *conn.Server, l *liteConsumer, s *liteChange) *tidegate.Error {
	if transport.AwaitsConnection(ctx) {
		if cause := server.Await(ctx); cause != nil {
			return request{ep: server, op: opSyncLite, subject: s.Topic}.notConnected(cause)
		}
	}
	on, since, err := c.session(opSyncLite, server, liteRole(s.Group, s.ID), s.Topic, tagFilter("*"))
	if err != nil {
		return err
	}
	defer on.release()
	settings, err := on.await(ctx, since, opSyncLite, s.Topic)
	if err != nil {
		return err
	}
	features := server.Capabilities() != (transport.Capabilities{})
	err = l.exceeds(s, settings.GetSubscription())
	if err == nil && !features {
		err = s.unsupported()
	}
	if err != nil {
		err.Endpoint = server.Key
		return err
	}
	for _, r := range s.requests(features) {
		if err := c.sendLite(ctx, on, l, r); err != nil {
			return err
		}
	}
	return nil
}

// unsupported returns the error of a start that RocketMQ ignores, without an endpoint.
func (s *liteChange) unsupported() *tidegate.Error {
	switch s.option.GetOffsetType().(type) {
	case *rmqpb.OffsetOption_TailN:
		return fail(opSyncLite, s.Topic, tidegate.CodeNotImplemented,
			"RocketMQ counts LiteStart.Last from the position of the group and not from the end; set another field")
	case *rmqpb.OffsetOption_Timestamp:
		return fail(opSyncLite, s.Topic, tidegate.CodeNotImplemented, "RocketMQ ignores LiteStart.Time; set another field")
	}
	return nil
}

// sendLite sends one request in a session.
func (c *Client) sendLite(ctx context.Context, on *session, l *liteConsumer, r *rmqpb.SyncLiteSubscriptionRequest) *tidegate.Error {
	_, _, err := call(ctx, c, request{ep: on.ep, id: on.id, op: opSyncLite, subject: l.Topic, session: on},
		rmqpb.MessagingServiceClient.SyncLiteSubscription, &rmqpb.SyncLiteSubscriptionRequest{
			Topic: c.resource(l.Topic), Group: c.resource(l.Group),
			Action: r.Action, LiteTopicSet: r.LiteTopicSet, Version: r.Version, OffsetOption: r.OffsetOption,
		})
	return err
}

// restoreLite sends the set of a consumer to a server, if it has one, after the session has opened. It
// does not block.
func (c *Client) restoreLite(on *session) {
	c.mu.Lock()
	l := c.lites[on.role]
	c.mu.Unlock()
	if l != nil && len(l.set()) > 0 {
		c.spawn(func() { c.resendLite(on, l) })
	}
}

// resendLite sends the set of a consumer to a server. A failure has no further consequence, because
// consumers repeat their set.
func (c *Client) resendLite(on *session, l *liteConsumer) {
	if l.take(on.ctx, c.ctx) != nil {
		return
	}
	defer l.free()
	l.mu.Lock()
	l.version++
	r := &rmqpb.SyncLiteSubscriptionRequest{Action: rmqpb.LiteSubscriptionAction_COMPLETE_ADD, Version: new(l.version)}
	l.mu.Unlock()
	r.LiteTopicSet = l.set()
	if err := c.sendLite(on.ctx, on, l, r); err != nil {
		c.opts.Logger.Debug("rocketmq: lite topics not restored; the consumer will send them again",
			"endpoint", on.ep.Key, "group", l.Group, "topic", l.Topic, "error", err)
	}
}

// set returns the lite topics of the consumer, sorted.
func (l *liteConsumer) set() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.topics))
}

// ServeLite implements transport.LiteSubscriber. The servers report ends in the sessions that
// SyncLite and Receive keep open. Ends before ServeLite began are reported too, unless SyncLite has
// added the lite topic again. Make one call at a time for a consumer.
func (c *Client) ServeLite(ctx context.Context, of transport.LiteConsumer, ended func(liteTopic string)) error {
	l, err := c.useLite(opTelemetry, of)
	if err != nil {
		return err
	}
	defer c.releaseLite(l)
	for {
		l.mu.Lock()
		names := l.ended
		l.ended = nil
		l.mu.Unlock()
		for _, name := range names {
			if ctx.Err() != nil {
				break
			}
			ended(name)
		}
		select {
		case <-l.kick:
		case <-ctx.Done():
			return nil
		case <-c.ctx.Done():
			return closedError(opTelemetry, of.Topic)
		}
	}
}

// endLite notes that a server has taken a lite topic from a consumer.
func (c *Client) endLite(as role, name string) {
	c.mu.Lock()
	l := c.lites[as]
	c.mu.Unlock()
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, has := l.topics[name]
	_, adds := l.adding[name]
	if !has && !adds {
		return // another server has reported it, or the consumer has ended its subscription
	}
	delete(l.topics, name)
	delete(l.adding, name)
	l.ended = append(l.ended, name)
	select {
	case l.kick <- struct{}{}:
	default: // a signal is pending already
	}
}

// exceeds returns the error of a change beyond the limits that a server has pushed, 0 for none. The
// error has no endpoint.
func (l *liteConsumer) exceeds(s *liteChange, limits *rmqpb.Subscription) *tidegate.Error {
	if s.Action == transport.LiteRemove {
		return nil
	}
	if most := positive(limits.GetMaxLiteTopicSize()); most > 0 {
		for _, name := range s.all {
			if len(name) > most {
				return fail(opSyncLite, s.Topic, protocol.CodeIllegalLiteTopic,
					fmt.Sprintf("the name of a lite topic has %d bytes; the limit of the server is %d (RocketMQ: maxLiteTopicSize)", len(name), most))
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.adding)
	if s.Action == transport.LiteAdd {
		for name := range l.topics {
			if _, ok := l.adding[name]; !ok {
				n++
			}
		}
	}
	if most := positive(limits.GetLiteSubscriptionQuota()); most > 0 && n > most {
		return fail(opSyncLite, s.Topic, protocol.CodeLiteSubscriptionQuotaExceeded, fmt.Sprintf(
			"the consumer would have %d lite topics; the limit of group %q is %d; end subscriptions, use several consumers, or raise the limit (RocketMQ: lite.sub.client.quota; tidegate: lite.max_topics)",
			n, s.Group, most))
	}
	return nil
}

// offsetOption returns the start of a change, nil for the position of the group.
func offsetOption(s transport.LiteSync) (*rmqpb.OffsetOption, error) {
	at := s.Start
	if err := at.Validate(); err != nil {
		return nil, err
	}
	switch {
	case s.Action == transport.LiteRemove:
	case at.Oldest:
		return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Policy_{Policy: rmqpb.OffsetOption_MIN}}, nil
	case at.Newest:
		return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Policy_{Policy: rmqpb.OffsetOption_MAX}}, nil
	case at.Last > 0:
		return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_TailN{TailN: at.Last}}, nil
	case at.Offset > 0:
		return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Offset{Offset: at.Offset}}, nil
	case !at.Time.IsZero():
		return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Timestamp{Timestamp: at.Time.UnixMilli()}}, nil
	}
	return nil, nil //nolint:nilnil // the position of the group has none
}
