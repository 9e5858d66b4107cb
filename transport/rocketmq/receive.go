package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

const (
	opReceive = "ReceiveMessage"

	// minPolling is how long RocketMQ lets a receive wait at least, whatever
	// it asked for.
	minPolling = 5 * time.Second

	// clocksAgree is how far a server's clock may be behind ours for its time
	// to be believed.
	clocksAgree = 5 * time.Second

	// passable is the size in bytes up to which a message that is larger than
	// Options.MaxReceiveSize is read, to be passed over: gRPC breaks a stream
	// off at one that it may not read, and what is behind it would fail too.
	passable = 64 << 20

	// besideBody is how many bytes a frame may have beside a body, at least: more
	// than twice what a tidegate broker takes of properties, names and the like.
	besideBody = 64 << 10
)

// Receive asks one server for messages as [transport.Receiver] says; with
// several servers and AnyQueue, the next one each time. It waits for the
// group's session with the server first, and opens it if there is none.
//
// With r.Repeat the queue must be the one that the first receive named: with several
// servers, AnyQueue may reach another one.
//
// Messages that came before the stream broke, or ctx ended, are not returned: the
// server may have taken them back already. They are given back in case it did
// not, so that they need not wait for the end of their invisible time; but not
// where r has an AttemptID, ctx goes on and the answer could be read: the receive may be
// repeated, which brings them. Those that were still on their way then have to wait. A message whose body is corrupted or too large is not returned but
// logged, and left alone: the server delivers it again when its invisible time
// is over, and makes a dead letter of it after the last attempt.
func (c *Client) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if err := tidegate.ValidateGroup(r.Group); err != nil {
		return nil, err
	}
	t, rt, err := c.consumerRoute(ctx, opReceive, r.Topic)
	if err != nil {
		return nil, err
	}
	if len(rt.readers) == 0 {
		c.doubt(t)
		return nil, noQueue(opReceive, r.Topic, c.access.key, "read")
	}
	from, id, ok := t.source(rt, r.Queue)
	if !ok {
		c.doubt(t)
		return nil, fail(opReceive, r.Topic, tidegate.CodeNotFound, "the route has no such queue any more: ask Queues again")
	}
	filter := filterOf(r.Filter)
	s, since, err := c.session(opReceive, from.ep, role{r.Group, r.Push}, r.Topic, filter)
	if err != nil {
		return nil, err
	}
	defer s.release()
	if _, err := s.await(ctx, since, opReceive, r.Topic); err != nil {
		c.doubtIf(t, err)
		return nil, err
	}
	if r.Repeat && !s.ep.capabilities().RepeatReceive {
		return nil, fail(opReceive, r.Topic, tidegate.CodeNotImplemented, "the server cannot repeat a receive: check Capabilities first")
	}
	list, err := c.receive(ctx, s, &r, &rmqpb.ReceiveMessageRequest{
		Group: c.resource(r.Group),
		MessageQueue: &rmqpb.MessageQueue{
			Topic:      c.resource(r.Topic),
			Id:         id,
			Permission: rmqpb.Permission_READ_WRITE,
			Broker:     from.pb,
		},
		FilterExpression:   filter,
		BatchSize:          int32(max(min(r.Max, 1<<20), 1)),
		InvisibleDuration:  durationpb.New(r.InvisibleDuration),
		LongPollingTimeout: durationpb.New(r.Wait),
		AttemptId:          attemptID(r.AttemptID),
	})
	if err != nil {
		c.doubtIf(t, err)
		return nil, err
	}
	return list, nil
}

func attemptID(id string) *string {
	if id == "" {
		return nil
	}
	return &id
}

func filterOf(f transport.Filter) *rmqpb.FilterExpression {
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

// receive makes the call and reads its stream to the end. Frames may come in
// any order.
func (c *Client) receive(ctx context.Context, s *session, r *transport.ReceiveRequest, req *rmqpb.ReceiveMessageRequest) ([]*tidegate.Delivery, *tidegate.Error) {
	if ctx.Err() != nil { // or the request may go out before the cancellation does, and take messages
		return nil, &tidegate.Error{Op: opReceive, Subject: r.Topic, Endpoint: s.ep.key, Err: context.Cause(ctx)}
	}
	// The server takes a deadline for the time that it may wait. It must not
	// learn the caller's, which may be too short for it: RocketMQ refuses less
	// than 5 s. The caller's end cancels instead.
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(min(r.Wait, forever), minPolling)+c.opts.RequestTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	defer context.AfterFunc(c.ctx, cancel)()

	failed := func(err error) *tidegate.Error {
		e := transportError(ctx, opReceive, r.Topic, s.ep.key, err, false, c.isClosed())
		if e.Code == tidegate.CodePayloadTooLarge { // an answer is, and not the request
			// Nothing that ends a consumer, as Classify sees it: the next request may bring other messages.
			e.Code, e.Err = 0, fmt.Errorf("%w: %w", transport.ErrUnreadable, err)
			e.Message = fmt.Sprintf("a message is too large to be read, and the server will deliver it again: raise Options.MaxReceiveSize, which is %d bytes, if it should be read", c.opts.MaxReceiveSize)
			return e
		}
		return e
	}
	var headers []string
	if r.Repeat {
		headers = []string{repeatKey, "true"}
	}
	stream, err := s.ep.api().ReceiveMessage(c.headers.outgoing(rctx, s.id, headers...), req,
		grpc.MaxCallRecvMsgSize(frameLimit(c.opts.MaxReceiveSize)))
	if err != nil {
		return nil, failed(err)
	}
	var got frames
	for {
		frame, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			got.err = failed(err)
			break
		}
		got.add(frame, time.Now())
		if m := frame.GetMessage(); m != nil {
			if d := c.delivery(s, r, m, got.began); d != nil {
				got.list = append(got.list, d)
			}
		}
	}
	if got.err == nil {
		code := got.status.GetCode()
		silent := got.status == nil && got.messages > 0 // some servers think that messages say enough
		if !silent && code != rmqpb.Code_OK && code != rmqpb.Code_MESSAGE_NOT_FOUND {
			got.err = statusError(opReceive, r.Topic, s.ep.key, got.status, stream.Trailer())
		}
	}
	if got.err != nil {
		if !repeatable(ctx, r, got.err) {
			c.giveBack(s, got.list)
		}
		return nil, got.err
	}
	if len(got.list) == 0 && c.isClosed() {
		return nil, closedError(opReceive, r.Topic) // the goodbye of Close was faster than its cancellation
	}
	var last time.Time
	for _, d := range got.list {
		if d.InvisibleUntil.IsZero() { // the server did not tell: it is what was asked for
			d.InvisibleUntil = got.handedOut().Add(r.InvisibleDuration)
		}
		if d.InvisibleUntil.After(last) {
			last = d.InvisibleUntil
		}
	}
	s.hold(last)
	return got.list, nil
}

// repeatable reports whether the same receive may follow and be answered what
// broke off, by its attempt ID: with some servers with the very handles that giving
// back would take from whoever handles the messages by then.
func repeatable(ctx context.Context, r *transport.ReceiveRequest, err error) bool {
	return r.AttemptID != "" && ctx.Err() == nil && !errors.Is(err, transport.ErrUnreadable)
}

// frameLimit returns the size in bytes of the largest frame that is read, for
// bodies of maxBody bytes.
func frameLimit(maxBody int) int {
	n := max(maxBody, passable)
	return max(n, n+besideBody) // the sum may overflow
}

// giveBack makes messages that nobody will handle visible again, in the
// background. What the server says to it changes nothing: the handle may be
// invalid already.
func (c *Client) giveBack(s *session, list []*tidegate.Delivery) {
	if len(list) == 0 {
		return
	}
	c.spawn(func() {
		for _, d := range list {
			r := request{ep: s.ep, id: s.id, op: opChange, subject: d.Topic}
			if _, _, err := c.changeInvisible(c.ctx, r, d, 0, true); err != nil { // a *tidegate.Error: nil is none to a logger
				c.opts.Logger.Debug("rocketmq: message not given back", "message", d.ID, "endpoint", s.ep.key, "err", err)
				continue
			}
			c.opts.Logger.Debug("rocketmq: message given back", "message", d.ID, "endpoint", s.ep.key)
		}
	})
}

// frames is what a receive brought.
type frames struct {
	status   *rmqpb.Status
	messages int                  // that came
	list     []*tidegate.Delivery // those that can be delivered
	began    time.Time            // of the first frame's arrival
	server   time.Time            // when the server began to deliver, by its clock
	err      *tidegate.Error
}

func (f *frames) add(frame *rmqpb.ReceiveMessageResponse, now time.Time) {
	if f.began.IsZero() {
		f.began = now
	}
	switch x := frame.GetContent().(type) {
	case *rmqpb.ReceiveMessageResponse_Status:
		f.status = x.Status
	case *rmqpb.ReceiveMessageResponse_Message:
		f.messages++
	case *rmqpb.ReceiveMessageResponse_DeliveryTimestamp:
		f.server = timeOf(x.DeliveryTimestamp)
	}
}

// handedOut returns when the messages' invisible time began, where they do not say
// what is left of it: by the server's clock if it agrees with ours, else when the
// first frame came, which is a little late, but not by hours.
func (f *frames) handedOut() time.Time {
	if late := f.began.Sub(f.server); late >= 0 && late <= clocksAgree {
		return f.server
	}
	return f.began
}

// delivery makes a delivery of m, nil if that cannot be. Its InvisibleUntil is set
// if m says how long that is: what is left of it when the stream began to come. A
// server's clock has no part in this; one that is 3 s behind would end a lease of 2 s.
func (c *Client) delivery(s *session, r *transport.ReceiveRequest, m *rmqpb.Message, began time.Time) *tidegate.Delivery {
	d, err := decodeMessage(m, c.opts.MaxReceiveSize)
	if err != nil {
		c.opts.Logger.Error("rocketmq: message not delivered; the server will deliver it again", "topic", r.Topic,
			"group", r.Group, "message", m.GetSystemProperties().GetMessageId(), "endpoint", s.ep.key, "err", err)
		return nil
	}
	if d.Topic == "" {
		d.Topic = r.Topic // or it could never be settled
	}
	d.ConsumerGroup = r.Group
	d.Endpoint = s.ep.key
	if left := durationOf(m.GetSystemProperties().GetInvisibleDuration()); left > 0 {
		d.InvisibleUntil = began.Add(left)
	}
	return d
}
