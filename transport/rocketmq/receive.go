package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

const (
	opReceive = "ReceiveMessage"

	// minPolling is the shortest time that RocketMQ lets a receive wait, also if the request has a
	// shorter one.
	minPolling = 5 * time.Second

	// clocksAgree is the largest difference at which the client uses the server's clock.
	clocksAgree = 5 * time.Second

	// passable is the smallest limit of a received message, in bytes. Messages between
	// Options.MaxReceiveSize and this limit are read and skipped. At a message above the limit gRPC
	// ends the stream, and the messages after it are lost to this receive.
	passable = 64 << 20

	// besideBody is the space in a frame in addition to the body, in bytes. It is more than twice
	// the size that a tidegate broker accepts for properties, names and other fields.
	besideBody = 64 << 10

	// defaultReceiveBytes bounds the bodies of a receive without MaxBytes, in bytes. It is the size
	// of 32 messages of 4 MiB, the largest response of RocketMQ.
	defaultReceiveBytes = 128 << 20

	// releaseTimeout bounds the time in which a receive releases messages.
	releaseTimeout = 3 * time.Second

	// releasing is the largest number of concurrent release requests.
	releasing = 8
)

// Receive implements transport.Receiver. It receives from one server; with AnyQueue and several
// servers from the next one each time. It first waits for the group's session with the server, and
// opens the session if there is none.
//
// With r.Repeat the queue must be the one of the first receive, because AnyQueue may reach another
// server.
//
// If the stream breaks or ctx ends, Receive releases the messages that have arrived and returns
// none. There is one exception: if r has an AttemptID, ctx has not ended, and the response could be
// read, it releases none, because repeating the receive returns them. Messages in transit then stay
// invisible until their invisible time ends.
//
// A message with a corrupt or too large body is logged and skipped. The server delivers it again
// and makes it a dead letter after the last attempt. Messages beyond r.MaxBytes, or beyond 128 MiB
// if that is zero, are released; only servers without support for r.MaxBytes send them. Receive
// never reads more than r.Max messages.
func (c *Client) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, _, err := c.receiveFrom(ctx, r, false, nil)
	return ds, err
}

// ReceiveParts implements transport.Streamer. The errors and the releases are those of Receive, of
// the messages that deliver did not get. A tidegate broker goes on with a receive until it has
// delivered half of r.Max or r.MaxBytes.
func (c *Client) ReceiveParts(ctx context.Context, r transport.ReceiveRequest, deliver func(part []*tidegate.Delivery, since time.Time)) ([]*tidegate.Delivery, error) {
	ds, _, err := c.receiveFrom(ctx, r, false, deliver)
	return ds, err
}

// receiveFrom receives from the next server of the topic. With watching it leaves a watch if it
// can. deliver, if not nil, takes parts of the messages.
func (c *Client) receiveFrom(ctx context.Context, r transport.ReceiveRequest, watching bool, deliver deliverFunc) (_ []*tidegate.Delivery, ready <-chan struct{}, _ error) {
	if err := tidegate.ValidateGroup(r.Group); err != nil {
		return nil, nil, err
	}
	t, rt, err := c.consumerRoute(ctx, opReceive, r.Topic)
	if err != nil {
		return nil, nil, err
	}
	if len(rt.Readers) == 0 {
		c.doubt(t)
		return nil, nil, noQueue(opReceive, r.Topic, c.access.Key, "read")
	}
	from, id, ok := t.places.Source(rt, &t.poll, r.Queue)
	if !ok {
		c.doubt(t)
		return nil, nil, fail(opReceive, r.Topic, tidegate.CodeNotFound, "the route no longer has this queue; call Queues again")
	}
	if transport.AwaitsConnection(ctx) {
		if cause := from.Server.Await(ctx); cause != nil {
			return nil, nil, request{ep: from.Server, op: opReceive, subject: r.Topic}.notConnected(cause)
		}
	}
	as, filter := role{group: r.Group, push: r.Push}, filterOf(r.Filter)
	if r.LiteConsumer != "" {
		as, filter = liteRole(r.Group, r.LiteConsumer), tagFilter("*")
	}
	s, since, err := c.session(opReceive, from.Server, as, r.Topic, filter)
	if err != nil {
		return nil, nil, err
	}
	defer s.release()
	if _, err := s.await(ctx, since, opReceive, r.Topic); err != nil {
		c.doubtIf(t, err)
		return nil, nil, err
	}
	if r.Repeat && !s.ep.Capabilities().RepeatReceive {
		return nil, nil, fail(opReceive, r.Topic, tidegate.CodeNotImplemented, "the server cannot repeat a receive; check Capabilities first")
	}
	var w *watch
	// With several servers, a watch on one of them does not cover a receive from all.
	if watching && (len(rt.Readers) == 1 || r.Queue != transport.AnyQueue) && s.ep.Capabilities().Watch {
		// Before the request: the server may report a message before the response arrives.
		of := wire.Queue{Topic: r.Topic, Queue: id}
		if w = s.watch(ctx, of); w != nil {
			defer func() {
				if ready == nil {
					s.unwatch(of, w)
				}
			}()
		}
	}
	list, left, err := c.receive(ctx, s, w != nil, deliver, &r, &rmqpb.ReceiveMessageRequest{
		Group: c.resource(r.Group),
		MessageQueue: &rmqpb.MessageQueue{
			Topic:      c.resource(r.Topic),
			Id:         id,
			Permission: rmqpb.Permission_READ_WRITE,
			Broker:     from.PB,
		},
		FilterExpression:   filter,
		BatchSize:          int32(max(min(r.Max, 1<<20), 1)),
		InvisibleDuration:  durationpb.New(r.InvisibleDuration),
		LongPollingTimeout: durationpb.New(r.Wait),
		AttemptId:          attemptID(r.AttemptID),
	})
	if err != nil {
		c.doubtIf(t, err)
		s.resendIf(err)
		return nil, nil, err
	}
	if left {
		ready = w.ready
	}
	return list, ready, nil
}

func attemptID(id string) *string {
	if id == "" {
		return nil
	}
	return &id
}

func filterOf(f tidegate.Filter) *rmqpb.FilterExpression {
	switch {
	case f.SQL:
		return &rmqpb.FilterExpression{Type: rmqpb.FilterType_SQL, Expression: f.Expression}
	case f.Expression == "":
		return tagFilter("*")
	}
	return tagFilter(f.Expression)
}

func tagFilter(expr string) *rmqpb.FilterExpression {
	return &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: expr}
}

// receive makes the call and reads its stream to the end. Frames may arrive in any order. With
// watching it asks the server to leave a watch, and left reports whether the server has.
func (c *Client) receive(ctx context.Context, s *session, watching bool, deliver deliverFunc, r *transport.ReceiveRequest, req *rmqpb.ReceiveMessageRequest) (_ []*tidegate.Delivery, left bool, _ *tidegate.Error) {
	if ctx.Err() != nil { // otherwise the request could be sent before its cancellation, and take messages
		return nil, false, &tidegate.Error{Op: opReceive, Subject: r.Topic, Endpoint: s.ep.Key, Err: context.Cause(ctx)}
	}
	// The server uses a request's deadline as its maximum wait. The caller's deadline may be too
	// short for that: RocketMQ rejects less than 5 s. The end of the caller's ctx cancels the
	// request instead.
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(min(r.Wait, forever), minPolling)+c.opts.RequestTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	defer context.AfterFunc(c.ctx, cancel)()

	failed := func(err error) *tidegate.Error {
		e := conn.OfCall(ctx, opReceive, r.Topic, s.ep.Key, err, false, c.isClosed())
		if e.Code == protocol.CodePayloadTooLarge { // the response was too large, not the request
			// Not a code that ends a consumer (see Classify): the next receive may return other
			// messages.
			e.Code, e.Err = 0, fmt.Errorf("%w: %w", transport.ErrUnreadable, err)
			e.Message = fmt.Sprintf("a message exceeds Options.MaxReceiveSize (%d bytes), and the server will deliver it again; raise the option to receive it", c.opts.MaxReceiveSize)
			return e
		}
		return e
	}
	got := c.collector(s, r, int(req.GetBatchSize()))
	got.deliver = deliver
	stream, err := s.ep.API().ReceiveMessage(c.headers.Outgoing(rctx, s.id, receiveHeaders(r, watching, deliver != nil)...), req,
		grpc.MaxCallRecvMsgSize(frameLimit(c.opts.MaxReceiveSize)))
	if err != nil {
		e := failed(err)
		s.ep.Link.Load().Lack(e, err)
		return nil, false, e
	}
	for !got.full {
		var f wire.ReceivedFrame
		err := stream.RecvMsg(&f)
		if err == nil {
			err = got.add(&f, time.Now())
		}
		if err == nil && got.part {
			got.endPart()
			c.giveBack(ctx, s, got.excess)
			got.excess = nil
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			got.err = failed(err)
			break
		}
	}
	if got.full {
		c.excess.log(c.opts.Logger, slog.LevelWarn, "rocketmq: the server sent more messages than the receive requested; the rest is discarded",
			"topic", r.Topic, "group", r.Group, "endpoint", s.ep.Key, "max", req.GetBatchSize())
	}
	if got.err == nil {
		silent := got.status == nil && got.messages > 0 // some servers send messages without a status
		if !silent && !conn.Succeeded(got.status) && got.status.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND {
			var trailer metadata.MD
			if !got.full { // after a full receive there is no trailer yet
				trailer = stream.Trailer()
			}
			got.err = conn.OfStatus(opReceive, r.Topic, s.ep.Key, got.status, trailer)
		}
	}
	left = watching && got.err == nil && !got.full && len(stream.Trailer().Get(wire.TrailerWatched)) > 0
	cancel() // ends a stream that was not read to its end
	if got.err != nil {
		if !repeatable(ctx, r, got.err) {
			c.giveBack(ctx, s, append(got.list, got.excess...))
		}
		return nil, false, got.err
	}
	c.giveBack(ctx, s, got.excess)
	if len(got.list) == 0 && c.isClosed() {
		return nil, false, closedError(opReceive, r.Topic) // the response to Close's termination arrived before the cancellation
	}
	return got.take(), left, nil
}

// receiveHeaders returns the headers of a receive, in pairs.
func receiveHeaders(r *transport.ReceiveRequest, watching, streaming bool) []string {
	features := watchHeader(watching)
	if streaming {
		features += ", " + wire.FeatureStream
	}
	headers := []string{wire.HeaderFeatures, features}
	if r.MaxBytes > 0 {
		headers = append(headers, wire.HeaderMaxBytes, strconv.Itoa(r.MaxBytes))
	}
	if r.Arrived > 0 {
		headers = append(headers, wire.HeaderArrived, strconv.Itoa(r.Arrived))
	}
	if r.Repeat {
		headers = append(headers, wire.HeaderRepeat, "true")
	}
	return headers
}

// repeatable reports whether the caller can repeat the receive by its attempt ID and get the
// messages of this one. Some servers return the same handles then; releasing them here would end
// the lease of the consumer that repeats the receive.
func repeatable(ctx context.Context, r *transport.ReceiveRequest, err error) bool {
	return r.AttemptID != "" && ctx.Err() == nil && !errors.Is(err, transport.ErrUnreadable)
}

// frameLimit returns the largest accepted frame for bodies of up to maxBody bytes, in bytes.
func frameLimit(maxBody int) int {
	n := max(maxBody, passable)
	return max(n, n+besideBody) // the sum may overflow
}

// giveBack releases messages that Receive does not return. It blocks for at most releaseTimeout,
// also if ctx has ended. Failures are only logged, because a handle may be invalid already.
func (c *Client) giveBack(ctx context.Context, s *session, list []*tidegate.Delivery) {
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(len(list), releasing) {
		wg.Go(func() {
			for i := next.Add(1); int(i) <= len(list); i = next.Add(1) {
				d := list[i-1]
				r := request{ep: s.ep, id: s.id, op: opChange, subject: d.Topic}
				if _, _, err := c.changeInvisible(ctx, r, d, 0, true); err != nil { // declared here: a nil *tidegate.Error in an error variable is not nil
					c.opts.Logger.Debug("rocketmq: message not released", "message_id", d.ID, "endpoint", s.ep.Key, "error", err)
				} else {
					c.opts.Logger.Debug("rocketmq: message released", "message_id", d.ID, "endpoint", s.ep.Key)
				}
			}
		})
	}
	wg.Wait()
}

// A collector collects the messages of one receive, within its bounds. Frames may arrive in any
// order.
type collector struct {
	c        *Client
	s        *session
	r        *transport.ReceiveRequest
	max      int // largest number of messages
	maxBytes int // largest sum of their bodies; the first message may be larger
	wire.Decoder

	status   *rmqpb.Status
	messages int                  // messages that arrived
	bytes    int                  // sum of the bodies in list
	list     []*tidegate.Delivery // the messages to return
	excess   []*tidegate.Delivery // messages beyond maxBytes, without their bodies
	full     bool                 // more than max messages arrived
	deliver  deliverFunc          // nil: the receive has one part
	part     bool                 // the messages in list are a part of the response, and further ones follow
	waited   time.Duration        // from the arrival of the request until the server handed this part out
	sent     time.Time            // when the request was sent
	began    time.Time            // arrival of the first frame
	server   time.Time            // start of the delivery, in the server's clock
	err      *tidegate.Error
}

func (c *Client) collector(s *session, r *transport.ReceiveRequest, most int) *collector {
	g := &collector{c: c, s: s, r: r, max: most, maxBytes: r.MaxBytes, sent: time.Now()}
	if g.maxBytes <= 0 {
		g.maxBytes = defaultReceiveBytes
	}
	return g
}

// take returns the messages of a part, and begins the next one.
func (g *collector) take() (list []*tidegate.Delivery) {
	var last time.Time
	for _, d := range g.list {
		d.InvisibleUntil = g.invisibleUntil(d)
		if d.InvisibleUntil.After(last) {
			last = d.InvisibleUntil
		}
	}
	g.s.hold(last)
	list, g.list = g.list, nil
	g.part, g.began, g.server = false, time.Time{}, time.Time{}
	return list
}

// endPart hands over the messages of a part, after which the receive goes on.
func (g *collector) endPart() {
	since := g.sent.Add(min(g.waited, time.Since(g.sent)))
	g.deliver(g.take(), since)
}

// A deliverFunc takes a part of the messages.
type deliverFunc = func(part []*tidegate.Delivery, since time.Time)

// add reads a frame and frees it.
func (g *collector) add(f *wire.ReceivedFrame, now time.Time) error {
	defer f.Free()
	if g.began.IsZero() {
		g.began = now
	}
	r := wire.Fields(f.Data)
	for !g.full && r.Next() {
		switch r.Tag {
		case wire.TagResponseStatus:
			g.status = &rmqpb.Status{}
			if err := proto.Unmarshal(r.Bytes(), g.status); err != nil {
				return wire.Unreadable(err)
			}
		case wire.TagResponseTime:
			server, err := wire.Moment(r.Bytes())
			if err != nil {
				return wire.Unreadable(err)
			}
			g.server = server
		case wire.TagResponseWaited:
			g.part = g.deliver != nil
			g.waited = time.Duration(min(r.Number(), uint64(forever/time.Microsecond))) * time.Microsecond //nolint:gosec // it fits
		case wire.TagResponseMessage, wire.TagResponsePacked:
			if g.full = g.messages == g.max; !g.full {
				g.messages++
				g.message(r.Bytes())
			}
		}
	}
	if r.Err != nil {
		return wire.Unreadable(r.Err)
	}
	return nil
}

// message adds a message, unless it is corrupt or too large.
func (g *collector) message(raw []byte) {
	p, err := g.Parse(raw)
	d := p.Delivery
	d.ConsumerGroup = g.r.Group
	d.Endpoint = g.s.ep.Key
	if d.Topic == "" {
		d.Topic = g.r.Topic // without a topic the delivery could not be settled
	}
	if g.r.LiteConsumer != "" && d.Topic == tidegate.DeadLetterTopic(g.r.Group) {
		err = errLiteDeadLetter
	}
	if len(g.excess) > 0 && err == nil && d.Handle != "" {
		g.excess = append(g.excess, d) // keeps the order of a message group
		return
	}
	if err == nil {
		err = p.Unpack(g.c.opts.MaxReceiveSize)
	}
	if err != nil {
		g.c.unread.log(g.c.opts.Logger, slog.LevelError, "rocketmq: message not received; the server will deliver it again", "topic", g.r.Topic,
			"group", g.r.Group, "message_id", d.ID, "endpoint", g.s.ep.Key, "error", err)
		return
	}
	if p.Invisible > 0 {
		d.InvisibleUntil = g.began.Add(p.Invisible) // see invisibleUntil
	}
	if len(g.list) > 0 && len(d.Body) > g.maxBytes-g.bytes {
		d.Body = nil
		g.excess = append(g.excess, d)
		return
	}
	g.bytes += len(d.Body)
	g.list = append(g.list, d)
}

// errLiteDeadLetter is the reason to skip a dead letter that RocketMQ delivers from a lite topic. It
// cannot be acknowledged, because its handle has the offset of the original message.
var errLiteDeadLetter = errors.New("after its last attempt RocketMQ has made the message a dead letter, and stored that in the lite topic again, where it blocks the later messages without end; " +
	"use another lite topic, and give the group a retryMaxTimes that is never reached")

// invisibleUntil returns the end of d's invisible time in the client's clock. It counts the
// remaining time that the server reports for d, or else the requested duration.
func (g *collector) invisibleUntil(d *tidegate.Delivery) time.Time {
	if left := d.InvisibleUntil.Sub(g.began); !d.InvisibleUntil.IsZero() {
		return d.InvisibleUntil.Add(-g.underWay(left))
	}
	if late := g.began.Sub(g.server); late >= 0 && late <= clocksAgree {
		return g.server.Add(g.r.InvisibleDuration)
	}
	return g.began.Add(g.r.InvisibleDuration - g.underWay(g.r.InvisibleDuration))
}

// underWay returns how long the response took to arrive, as far as it is known. A lease that counts
// from the arrival of a slow response ends after the server delivers the message again. The
// server's time is used only if it lies between the request and the response: otherwise the clocks
// differ. A clock that is behind looks like a slow response during a long poll, so a quarter of
// the invisible duration remains for the first extension.
func (g *collector) underWay(invisible time.Duration) time.Duration {
	d := g.began.Sub(g.server)
	if g.server.Before(g.sent) || d < 0 || d > invisible/4*3 {
		return 0
	}
	return d
}
