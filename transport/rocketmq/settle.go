package rocketmq

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

const (
	opAck        = "AckMessage"
	opChange     = "ChangeInvisibleDuration"
	opSnooze     = "Snooze"
	opDeadLetter = "ForwardMessageToDeadLetterQueue"

	// maxAcks bounds the deliveries of one acknowledgement, and maxAckBytes their IDs and handles,
	// in bytes. Both are half of a tidegate broker's limits.
	maxAcks     = 512
	maxAckBytes = 512 << 10
)

// settling returns the common part of requests about a delivery. They go to the server that
// delivered the message, in the session of the push consumer; for a message of a lite topic in that
// of a consumer of lite topics of the group, if there is one. If there is only a session of a
// simple consumer, and push returns false for the server, they use that one. RocketMQ rejects
// requests of clients without a session.
func (c *Client) settling(ctx context.Context, op string, d *tidegate.Delivery, push func(*conn.Server) bool) (request, *tidegate.Error) {
	as := role{group: d.ConsumerGroup, push: true}
	if liteTopic(d) != nil {
		as = c.liteRoleOf(d.Endpoint, d.ConsumerGroup, d.Topic)
	}
	c.mu.Lock()
	closed, ep := c.closed, c.endpoints[d.Endpoint]
	s, simple := c.sessions[sessionKey{d.Endpoint, as}], c.sessions[sessionKey{d.Endpoint, role{group: d.ConsumerGroup}}]
	c.mu.Unlock()
	if closed {
		return request{}, closedError(op, d.Topic)
	}
	if ep == nil {
		e := fail(op, d.Topic, tidegate.CodeIllegalAccessPoint, "this client has no connection to the server that delivered the message; settle it with the client that received it")
		e.Endpoint = d.Endpoint
		return request{}, e
	}
	switch {
	case s == nil && simple != nil && as.lite == "" && (push == nil || !push(ep)):
		as.push, s = false, simple
	case s == nil || push != nil && push(ep):
		var since int
		var err *tidegate.Error
		if s, since, err = c.session(op, ep, as, d.Topic, nil); err != nil {
			return request{}, err
		}
		defer s.release()
		if _, err := s.await(ctx, since, op, d.Topic); err != nil {
			return request{}, err
		}
	}
	s.hold(time.Now().Add(c.opts.RequestTimeout)) // the request needs the session
	return request{ep: ep, id: s.id, op: op, subject: d.Topic, session: s}, nil
}

// Ack implements transport.Settler. It sends one request to each server, or one for each 512
// deliveries or 512 KiB of them.
func (c *Client) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	byServer := map[string][]int{}
	for i, d := range ds {
		byServer[d.Endpoint] = append(byServer[d.Endpoint], i)
	}
	ack := func(indexes []int) {
		for rest := indexes; len(rest) > 0; {
			n := ackable(ds, rest)
			c.ack(ctx, ds, rest[:n], errs)
			rest = rest[n:]
		}
	}
	if len(byServer) == 1 {
		ack(byServer[ds[0].Endpoint])
		return errs
	}
	var wg sync.WaitGroup
	for _, indexes := range byServer {
		wg.Go(func() { ack(indexes) })
	}
	wg.Wait()
	return errs
}

// ackable returns the number of deliveries that fit into one acknowledgement.
func ackable(ds []*tidegate.Delivery, indexes []int) int {
	const perEntry = 23 // bytes beside the texts, at most
	size := 0
	for n, i := range indexes {
		if size += perEntry + len(ds[i].ID) + len(ds[i].Handle) + len(ds[i].LiteTopic); n == maxAcks || n > 0 && size > maxAckBytes {
			return n
		}
	}
	return len(indexes)
}

// ack acknowledges the deliveries of one server in one request.
func (c *Client) ack(ctx context.Context, ds []*tidegate.Delivery, indexes []int, errs []error) {
	first := ds[indexes[0]]
	r, err := c.settling(ctx, opAck, first, nil)
	if err != nil {
		for _, i := range indexes {
			errs[i] = err
		}
		return
	}
	r.headers = []string{wire.HeaderFeatures, wire.FeatureBrief}
	req := &rmqpb.AckMessageRequest{
		Group: c.resource(first.ConsumerGroup), Topic: c.resource(first.Topic), Entries: make([]*rmqpb.AckMessageEntry, len(indexes)),
	}
	entries := make([]rmqpb.AckMessageEntry, len(indexes))
	for n, i := range indexes {
		entries[n].MessageId, entries[n].ReceiptHandle, entries[n].LiteTopic = ds[i].ID, ds[i].Handle, liteTopic(ds[i])
		req.Entries[n] = &entries[n]
	}
	res, trailer, err := call(ctx, c, r, rmqpb.MessagingServiceClient.AckMessage, req)
	for n, i := range indexes {
		entry := ackEntryOf(res, n, len(indexes), ds[i].Handle)
		st := entry.GetStatus()
		switch {
		case conn.Succeeded(st):
		case st.GetCode() != 0:
			e := conn.OfStatus(opAck, first.Topic, r.ep.Key, st, trailer)
			e.MaybeStored = conn.MaybeStored(e)
			errs[i] = e
		case err != nil:
			errs[i] = err
		case !conn.Succeeded(res.GetStatus()) || entry == nil && len(res.GetEntries()) > 0:
			e := conn.OfStatus(opAck, first.Topic, r.ep.Key, &rmqpb.Status{
				Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: "the response has no result for this delivery, which may be settled or not",
			}, nil)
			e.MaybeStored = true
			errs[i] = e
		}
	}
}

// ackEntryOf returns the entry of delivery n of total. If there are total entries it is entry n,
// otherwise the one with the handle. It returns nil if there is none.
func ackEntryOf(res *rmqpb.AckMessageResponse, n, total int, handle string) *rmqpb.AckMessageResultEntry {
	entries := res.GetEntries()
	if len(entries) == total {
		return entries[n]
	}
	for _, e := range entries {
		if e.GetReceiptHandle() == handle {
			return e
		}
	}
	return nil
}

const opReconsume = "Reconsume"

// settleOps has the operation in errors of each verdict that is a change of the invisible duration.
var settleOps = map[transport.VerdictKind]string{
	transport.Release: opChange, transport.Retry: opChange, transport.Snooze: opSnooze,
	transport.RetryTopic: opReconsume, transport.NegativeAck: opReconsume,
}

// Settle implements transport.Settler. It sends no request for a verdict that the server has not
// announced, because such a server would only extend the lease.
//
// A DeadLetter has a request of its own; the other verdicts are changes of the invisible duration
// with headers (see wire.VerdictHeaders). At most 1 KiB of a reason is sent, and only tidegate
// brokers report the fate, in a trailer.
//
// Retry: RocketMQ counts it as a failed delivery. A negative delay other than
// [transport.BySchedule] means 0. [transport.BySchedule] on a server that does not support it means
// the interval that the server pushed last. A tidegate broker accepts it only from push consumers.
// For deliveries that were not received as one, Settle therefore opens the group's session as a
// push consumer if there is none.
//
// Release has the duration 0 and the flag suspend, which RocketMQ before 5.5 ignores.
func (c *Client) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	op, isChange := settleOps[v.Kind]
	switch {
	case v.Kind == transport.DeadLetter:
		return c.deadLetter(ctx, d, v)
	case !isChange:
		return transport.RetryResult{}, v.Unsupported(d)
	}
	var asPush func(*conn.Server) bool
	if v.Kind == transport.Retry {
		asPush = func(ep *conn.Server) bool { return ep.Capabilities().Suspend }
	}
	r, err := c.settling(ctx, op, d, asPush)
	if err != nil {
		return transport.RetryResult{}, err
	}
	dur, suspend := v.Delay, true
	switch v.Kind {
	case transport.Retry:
		if suspend = false; dur == transport.BySchedule {
			dur = r.session.interval(d.Attempt)
		}
		dur = max(dur, 0)
	case transport.Release:
		dur = 0
	default:
		if !r.ep.Capabilities().Verdicts.Has(v.Kind) {
			e := fail(op, d.Topic, tidegate.CodeNotImplemented, "the server does not take the verdict "+v.Kind.String()+"; check Capabilities.Verdicts first")
			e.Endpoint = r.ep.Key
			return transport.RetryResult{}, e
		}
		if v.Level != 0 && (v.Delay != 0 || v.Kind != transport.RetryTopic) {
			return transport.RetryResult{}, fail(op, d.Topic, tidegate.CodeBadRequest, "a level, and a delay or negative acknowledgement, exclude each other; give one of them")
		}
	}
	r.headers = wire.VerdictHeaders(v)
	_, trailer, failed := c.changeInvisible(ctx, r, d, dur, suspend)
	if failed != nil {
		return transport.RetryResult{}, failed
	}
	return wire.ParseResult(trailer.Get(wire.TrailerRetry)), nil
}

// interval returns the retry interval after an attempt, by the settings that the server pushed
// last.
func (s *session) interval(attempt int) time.Duration {
	s.mu.Lock()
	settings := s.settings
	s.mu.Unlock()
	var ladder backoff.Policy = backoff.RetryLadder()
	if told := consumerSettings(settings, s.ep.Capabilities()).Retry; told != nil {
		ladder = told
	}
	return ladder.Delay(max(0, attempt-1))
}

// Extend implements transport.Settler. It sets the flag suspend for a tidegate broker only. There
// the flag distinguishes it from a failure of a push consumer, and the attempt counts when the
// lease ends. RocketMQ 5.5 would not count the attempt, so that a message whose handler ends the
// process would return without end. A repetition has a header with which a tidegate broker finds
// the handle that replaced d.Handle; other servers ignore it. With an error the handle is empty.
func (c *Client) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	r, err := c.settling(ctx, opChange, d, nil)
	if err != nil {
		return "", err
	}
	if repeat {
		r.headers = []string{wire.HeaderRepeat, "true"}
	}
	handle, _, err := c.changeInvisible(ctx, r, d, dur, r.ep.Capabilities().Suspend)
	if err != nil {
		return "", err
	}
	r.session.hold(time.Now().Add(dur))
	return handle, nil
}

func (c *Client) changeInvisible(ctx context.Context, r request, d *tidegate.Delivery, dur time.Duration, suspend bool) (string, metadata.MD, *tidegate.Error) {
	res, trailer, err := call(ctx, c, r, rmqpb.MessagingServiceClient.ChangeInvisibleDuration, &rmqpb.ChangeInvisibleDurationRequest{
		Group:             c.resource(d.ConsumerGroup),
		Topic:             c.resource(d.Topic),
		ReceiptHandle:     d.Handle,
		InvisibleDuration: durationpb.New(dur),
		MessageId:         d.ID,
		LiteTopic:         liteTopic(d),
		Suspend:           &suspend,
	})
	if err != nil {
		return "", nil, err // with an error a server may return the old handle
	}
	return res.GetReceiptHandle(), trailer, nil
}

func (c *Client) deadLetter(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	r, err := c.settling(ctx, opDeadLetter, d, nil)
	if err != nil {
		return transport.RetryResult{}, err
	}
	if liteTopic(d) != nil && r.ep.Capabilities() == (transport.Capabilities{}) {
		e := fail(opDeadLetter, d.Topic, tidegate.CodeNotImplemented, "RocketMQ stores a dead letter of a lite topic in the lite topic as well, where it blocks the later messages; retry the message, or acknowledge it")
		e.Endpoint = r.ep.Key
		return transport.RetryResult{}, e
	}
	r.headers = wire.VerdictHeaders(v)
	// Servers use the maximum of attempts there for information only. This delivery was the last.
	_, trailer, failed := call(ctx, c, r, rmqpb.MessagingServiceClient.ForwardMessageToDeadLetterQueue,
		&rmqpb.ForwardMessageToDeadLetterQueueRequest{
			Group:               c.resource(d.ConsumerGroup),
			Topic:               c.resource(d.Topic),
			ReceiptHandle:       d.Handle,
			MessageId:           d.ID,
			DeliveryAttempt:     int32(d.Attempt),
			MaxDeliveryAttempts: int32(d.Attempt),
			LiteTopic:           liteTopic(d),
		})
	if failed != nil {
		return transport.RetryResult{}, failed
	}
	return wire.ParseResult(trailer.Get(wire.TrailerRetry)), nil
}

const (
	// parallelChecks bounds the concurrent calls of one check function. waitingChecks bounds the
	// waiting checks; the server repeats the checks above it later.
	parallelChecks = 16
	waitingChecks  = 256
)

// A checker is one call of ServeChecks.
type checker struct {
	topics []string
	asked  chan transport.TransactionCheck // of capacity waitingChecks
}

// ServeChecks implements transport.Transactor. It keeps a session with every server of the topics
// and follows changes of the routes. The servers send their checks in these sessions. A panic in
// check is logged and counts as ResolutionUnknown.
func (c *Client) ServeChecks(ctx context.Context, topics []string, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
	if len(topics) == 0 {
		return fail(opTelemetry, "", tidegate.CodeBadRequest, "no topic given; give the topics whose transactions need checks")
	}
	for _, name := range topics {
		if err := tidegate.ValidateTopic(name); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	k := &checker{topics: topics, asked: make(chan transport.TransactionCheck, waitingChecks)}
	c.mu.Lock()
	c.checkers = append(c.checkers, k)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.checkers = slices.DeleteFunc(c.checkers, func(x *checker) bool { return x == k })
	}()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.holdSessions(ctx, topics) })
	for range parallelChecks {
		wg.Go(func() {
			for {
				select {
				case q := <-k.asked:
					c.resolve(ctx, q, check)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	<-ctx.Done()
	if c.isClosed() {
		return closedError(opTelemetry, topics[0])
	}
	return nil
}

// resolve resolves one check. It sends the resolution also if ctx ends while check runs.
func (c *Client) resolve(ctx context.Context, q transport.TransactionCheck, check func(context.Context, transport.TransactionCheck) transport.Resolution) {
	log := c.opts.Logger.With("topic", q.Transaction.Topic, "message_id", q.Transaction.MessageID, "endpoint", q.Transaction.Endpoint)
	r := func() (r transport.Resolution) {
		defer func() {
			if v := recover(); v != nil {
				c.unresolved.log(log, slog.LevelError, "rocketmq: transaction check panicked; the server will repeat it", "panic", v, "stack", string(debug.Stack()))
			}
		}()
		return check(ctx, q)
	}()
	if r == transport.ResolutionUnknown {
		return
	}
	if err := c.endTransaction(context.WithoutCancel(ctx), q.Transaction, r, rmqpb.TransactionSource_SOURCE_SERVER_CHECK); err != nil {
		c.unresolved.log(log, slog.LevelWarn, "rocketmq: resolution not sent; the server will repeat the check", "resolution", r.String(), "error", err)
	}
}

// holdSessions keeps a producer's session with every server of the topics until ctx ends.
func (c *Client) holdSessions(ctx context.Context, topics []string) {
	held := map[*session]bool{}
	defer func() {
		for s := range held {
			s.release()
		}
	}()
	ticker := time.NewTicker(c.opts.RouteRefresh)
	defer ticker.Stop()
	for {
		wanted := map[*session]bool{}
		for _, name := range topics {
			_, rt, err := c.route(transport.AwaitConnection(ctx), opTelemetry, name)
			if err != nil {
				c.opts.Logger.Warn("rocketmq: serving transaction checks of a topic failed", "topic", name, "error", err)
				continue
			}
			for _, ep := range rt.Servers {
				s, since, err := c.session(opTelemetry, ep, role{}, name, nil)
				if err != nil {
					return // the client is closed
				}
				if wanted[s] = true; held[s] {
					s.release()
				}
				held[s] = true
				// A waiting caller makes the session reopen a lost stream soon.
				_, _ = s.await(ctx, since, opTelemetry, name)
			}
		}
		for s := range held {
			if !wanted[s] {
				delete(held, s)
				s.release()
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// asked passes a server's check to a checker of its topic.
func (c *Client) asked(ep *conn.Server, cmd *rmqpb.RecoverOrphanedTransactionCommand) error {
	pb := proto.CloneOf(cmd.GetMessage())
	if pb.GetSystemProperties() == nil {
		return errors.New("the message has no properties")
	}
	pb.SystemProperties.ReceiptHandle = new("none") // a check has no receipt handle, but DecodeMessage requires one
	d, err := wire.DecodeMessage(pb, c.opts.MaxReceiveSize)
	if err != nil {
		return err
	}
	q := transport.TransactionCheck{Message: &d.Message, Transaction: transport.Transaction{
		ID: cmd.GetTransactionId(), MessageID: d.ID, Topic: d.Topic, Endpoint: ep.Key,
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.checkers {
		if slices.Contains(k.topics, d.Topic) {
			select {
			case k.asked <- q:
				return nil
			default:
			}
		}
	}
	return errors.New("no checker serves the topic, or too many checks wait")
}
