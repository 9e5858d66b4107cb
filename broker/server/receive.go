package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// releaseTimeout bounds the release of messages after the client has disconnected.
const releaseTimeout = 10 * time.Second

type receiveStream = grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]

// receiveMessage serves ReceiveMessage. The frames are, in this order: a
// status, the messages, the time of delivery. A client that reads packed frames gets many
// messages in each, and the status with the last. For a client that reads streams the receive goes
// on after the first messages; see [engine.Request].Stream.
//
// If the client leaves before the last frame of the messages is handed to gRPC, which is the case
// when it cancels the call, a write fails or its connection closes, the receive ends and these
// messages are ready again with their attempts unspent. A client that reads streams can use messages
// as soon as gRPC has the last frame of their part, so a cancellation after that takes none back. A
// client that leaves later may not have read the frames, and the server cannot know: gRPC reports no
// cancellation of a call whose handler has returned, and NotifyClientTermination does not report
// which deliveries the client has read. Such a client repeats the receive with the same attempt ID,
// which works from the moment of the cancellation, and releases the messages that it then gets; with
// the header x-tidegate-repeat the repetition takes no new ones and does not wait.
func (s *Server) receiveMessage(raw grpc.ServerStream) (err error) {
	defer asStatus(&err)
	defer s.recovered("ReceiveMessage", &err)
	stream := receiveStream(&grpc.GenericServerStream[rmqpb.ReceiveMessageRequest, rmqpb.ReceiveMessageResponse]{ServerStream: raw})
	ctx := stream.Context()
	// It fails only after the header was sent, which is later.
	_ = stream.SetHeader(s.features())
	f := &wire.Deliveries{Packed: requests.Announces(ctx, wire.FeaturePacked), CRC: requests.Header(ctx, wire.HeaderLanguage) == requests.LanguageGo}
	in := s.intake(ctx)
	defer func() { admission.PlaceOf(ctx).TakeOver(&in.Hold, in.Hold.Bytes()) }()
	streamed := false
	ds, err := s.receive(ctx, in, f, func(part []*tidegate.Delivery) error {
		streamed = true
		return s.sendPart(stream, in, f, part)
	})
	if err != nil {
		if g, ok := errors.AsType[*refusal.Cut](err); ok {
			return g.Status
		}
		st, gerr := s.answer(ctx, "ReceiveMessage", err)
		if gerr != nil {
			return gerr
		}
		if d := refusal.PushBackOf(err); d > 0 {
			stream.SetTrailer(requests.PushBack(d))
		}
		return writeEmpty(stream, st)
	}
	if len(ds) == 0 && streamed {
		return stream.Send(okFrame)
	}
	if len(ds) == 0 {
		return writeEmpty(stream, noMessage)
	}
	// It is never certain which frame the client did not read. But a client that has not read the
	// last frame has used no message, because RocketMQ's clients collect the whole stream. A client
	// that reads streams can have used them when it cancels the call.
	if err = deliver(in, func() error { return writeMessages(stream, f, ds) }); err == nil && f.Begun.IsZero() {
		err = ctx.Err()
	}
	if err != nil {
		f.Forget()
		s.release(ctx, ds)
	}
	return err
}

// A partStream counts messages in a place of their own.
type partStream struct {
	receiveStream
	place *admission.Place
}

// SendMsg implements grpc.ServerStream.
func (p partStream) SendMsg(m any) error {
	return p.receiveStream.SendMsg(&requests.Placed{Message: m, Place: p.place})
}

// sendPart sends messages of a receive that goes on. If gRPC does not take all of them, the client
// has used none, because the last frame completes the part, and sendPart returns them to the queue.
// Otherwise the client may use them, although it cancels the call afterwards.
func (s *Server) sendPart(stream receiveStream, in *requests.Intake, f *wire.Deliveries, ds []*tidegate.Delivery) error {
	ctx := stream.Context()
	place := admission.PlaceOf(ctx).Part()
	defer place.End()
	if err := deliver(in, func() error { return writeMessages(partStream{stream, place}, f, ds) }); err != nil {
		f.Forget()
		s.release(ctx, ds)
		return &refusal.Cut{Status: err}
	}
	place.TakeOver(&in.Hold, in.Hold.Bytes())
	f.Forget() // gRPC has the frames, and this receive may wait for long
	return nil
}

// noMessage is the status of an empty response, with the text of RocketMQ's proxy.
var noMessage = &rmqpb.Status{Code: rmqpb.Code_MESSAGE_NOT_FOUND, Message: "no new message"}

func writeEmpty(stream receiveStream, st *rmqpb.Status) error {
	if err := stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: st}}); err != nil {
		return err
	}
	return writeTime(stream, time.Now())
}

func writeTime(stream receiveStream, at time.Time) error {
	return stream.Send(&rmqpb.ReceiveMessageResponse{
		Content: &rmqpb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.New(at)},
	})
}

var okFrame = &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: wire.OK}}

// writeMessages sends ds, with the status before and the time behind them, or packed.
func writeMessages(stream receiveStream, f *wire.Deliveries, ds []*tidegate.Delivery) error {
	frames, err := f.Frames(ds)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if !f.Packed {
		if err := stream.Send(okFrame); err != nil {
			return err
		}
	}
	for i := range frames {
		if err := stream.SendMsg(&frames[i]); err != nil {
			return err
		}
	}
	if f.Packed {
		return nil // the last frame has the status and the time
	}
	return writeTime(stream, f.At())
}

// release returns the deliveries to the queue that the client did not receive.
func (s *Server) release(ctx context.Context, ds []*tidegate.Delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for _, d := range ds {
		d.Body = nil // it takes memory, and the engine needs the handle alone
	}
	s.engine.Return(ctx, ds)
}

// receive reads a request and calls the engine, through the middleware if there is one. A middleware
// decides about the response after the engine, so then no part is sent before, unless the
// middleware has left that to the server. Its error can be a *refusal.Cut.
func (s *Server) receive(ctx context.Context, in *requests.Intake, f *wire.Deliveries, part func([]*tidegate.Delivery) error) (ds []*tidegate.Delivery, err error) {
	from, err := s.gate.Authenticate(ctx, time.Now(), requests.RPCReceive)
	if err != nil {
		return nil, err
	}
	req := &rmqpb.ReceiveMessageRequest{}
	if err := read(ctx, in, req); err != nil {
		return nil, err
	}
	client, err := s.gate.Admit(ctx, requests.RPCReceive, from, req)
	if err != nil {
		return nil, err
	}
	if err := requests.CheckNamespace(req.GetMessageQueue().GetTopic()); err != nil {
		return nil, err
	}
	f.Namespace = req.GetMessageQueue().GetTopic().GetResourceNamespace()
	if s.o.Intercept == nil {
		return s.poll(ctx, client, from.Under(), req, &in.Hold, f, part)
	}
	var done bool
	var failure error
	err = s.intercept(ctx, callOf(requests.RPCReceive, client, req), func(ctx context.Context) error {
		done = true
		through := part
		if !engine.ResponseIsLeft(ctx) {
			through = nil
		}
		ds, failure = s.poll(ctx, client, from.Under(), req, &in.Hold, f, through)
		return failure
	}, &done)
	if err == nil {
		err = failure
	}
	return ds, err
}

// poll carries out a receive that was admitted under some rules, and turns a panic into an error.
// When the rules change, it ends without an error; the next receive is checked against the new
// rules.
func (s *Server) poll(ctx context.Context, client string, under *auth.Regime, req *rmqpb.ReceiveMessageRequest, h *admission.Hold, f *wire.Deliveries, part func([]*tidegate.Delivery) error) (ds []*tidegate.Delivery, err error) {
	defer s.recovered("ReceiveMessage", &err)
	begun := time.Now()
	place, err := s.park(ctx, h.Bytes())
	if err != nil {
		return nil, err
	}
	defer place.Release()
	h.Release() // the place has its bytes too
	parked, c, unpark, err := s.sessions.Park(ctx, client, s.origin(ctx, client))
	if err != nil {
		return nil, err
	}
	defer func() { unpark(err == nil) }()
	if s.gate.Regime() != under { // rules that change from here on find it parked
		return nil, nil
	}
	p, err := s.pollOf(ctx, client, c, req)
	if err != nil {
		return nil, err
	}
	f.Forget()
	c.Receives(p.Group, p.Topic, p.Filter)
	if c.Profile() == nil { // else its stream has reported the address
		c.At(requests.PeerAddress(ctx))
	}
	p.Holder, p.Encoder, p.Memory = c.Holder(), f, admission.BodiesIn(h, p.Max, 1)
	s.engine.Touch(client)
	if w := s.watch(ctx, c, &p, req.GetMessageQueue().GetId()); w != nil {
		p.Watch, p.Wait = w.Watch, 0 // instead of the wait
		defer func() {
			switch {
			case err != nil:
				w.End()
			case !w.Keep():
			case parked.Err() != nil || s.gate.Regime() != under:
				w.Report() // the event that ended the receive has perhaps missed the watch
			default:
				// It fails only after the response was sent, which is later.
				_ = grpc.SetTrailer(ctx, requests.Watched)
			}
		}()
	} else if part != nil && waits(req) && f.Packed && requests.Announces(ctx, wire.FeatureStream) {
		f.Begun = begun
		p.Stream = func(ds []*tidegate.Delivery) (more bool, err error) {
			err = part(ds)
			return s.o.Intercept == nil || engine.ResponseIsLeft(ctx), err
		}
	}
	ds, err = s.messages.Poll(parked, p)
	s.engine.Touch(client)
	if err != nil && ctx.Err() == nil && session.EndedHere(parked) {
		return nil, nil
	}
	return ds, err
}

// waits reports whether the client wants a receive to wait.
func waits(req *rmqpb.ReceiveMessageRequest) bool {
	d := req.GetLongPollingTimeout()
	return d == nil || d.AsDuration() > 0
}

// watch returns the watch that the receive may leave, or nil if it leaves none. Receives from lite
// topics leave none.
func (s *Server) watch(ctx context.Context, c *session.Client, p *engine.Request, queue int32) *session.Watch {
	if p.LiteConsumer != "" || !requests.Announces(ctx, wire.FeatureWatch) {
		return nil
	}
	if t := s.sessions.Watching(c); t != nil {
		return t.Watch(p.Topic, queue)
	}
	return nil
}

// pollOf checks a receive and converts it into the request of the engine.
func (s *Server) pollOf(ctx context.Context, client string, c *session.Client, req *rmqpb.ReceiveMessageRequest) (engine.Request, error) {
	most := batchSize(requests.Announces(ctx, wire.FeaturePacked))
	if req.GetAutoRenew() {
		c.AutoRenews()
	}
	out := engine.Request{
		ReceiveRequest: transport.ReceiveRequest{
			Group:             req.GetGroup().GetName(),
			Topic:             req.GetMessageQueue().GetTopic().GetName(),
			Queue:             transport.AnyQueue,
			Max:               int(min(req.GetBatchSize(), most)),
			InvisibleDuration: req.GetInvisibleDuration().AsDuration(),
			AttemptID:         req.GetAttemptId(),
			Repeat:            requests.Header(ctx, wire.HeaderRepeat) != "",
			Push:              c.IsPush(),
		},
	}
	// RocketMQ's proxy ignores the queue, and its simple consumers depend on this: they name one
	// queue after the other, and expect messages of all queues. The client for Node.js always names
	// the first queue. A push consumer names a queue from QueryAssignment.
	if out.LiteConsumer = s.liteConsumer(c, client, out.Topic); out.LiteConsumer != "" {
		out.Push = true
	} else if out.Push {
		if out.Queue = int(req.GetMessageQueue().GetId()); out.Queue < anyQueue {
			return out, refusal.New(tidegate.CodeBadRequest, "message_queue.id",
				"the message_queue.id is %d; give the number of a queue, or -1 for all", out.Queue)
		}
	}
	var err error
	if out.MaxBytes, err = requests.MaxBytes(ctx); err != nil {
		return out, err
	}
	if out.Arrived, err = requests.Arrived(ctx); err != nil {
		return out, err
	}
	if req.GetBatchSize() < 0 {
		return out, refusal.New(tidegate.CodeBadRequest, "batch_size",
			"the batch_size is %d; give 1 to %d", req.GetBatchSize(), most)
	}
	if req.GetAutoRenew() {
		out.Owner = client
	} else if d := req.GetInvisibleDuration(); d.CheckValid() != nil {
		return out, refusal.New(protocol.CodeIllegalInvisibleTime, "invisible_duration", "the invisible_duration is missing or out of range; set it, or set auto_renew")
	}
	switch f := req.GetFilterExpression(); f.GetType() {
	case rmqpb.FilterType_FILTER_TYPE_UNSPECIFIED, rmqpb.FilterType_TAG:
		out.Filter.Expression = f.GetExpression()
	case rmqpb.FilterType_SQL:
		out.Filter = tidegate.Filter{Expression: f.GetExpression(), SQL: true}
	default:
		return out, refusal.New(protocol.CodeIllegalFilterExpression, "filter_expression",
			"the filter_expression has the type %d; give TAG (1) or SQL (2)", f.GetType())
	}
	var asked, left time.Duration = -1, -1
	if d := req.GetLongPollingTimeout(); d != nil {
		if asked = d.AsDuration(); d.CheckValid() != nil || asked < 0 {
			return out, refusal.New(protocol.CodeIllegalPollingTime, "long_polling_timeout",
				"the long_polling_timeout is %v; it must not be negative", asked)
		}
	}
	if deadline, ok := ctx.Deadline(); ok {
		left = max(time.Until(deadline), 0)
	}
	var ok bool
	if out.Wait, ok = longPoll(asked, left, c.Profile().RequestTimeout(), s.o.MinLongPolling, s.o.MaxLongPolling); !ok {
		var code tidegate.Code = protocol.CodeIllegalPollingTime
		if requests.Before503(requests.Header(ctx, wire.HeaderClientVersion)) {
			code = tidegate.CodeBadRequest
		}
		return out, refusal.New(code, "long_polling_timeout",
			"the request's deadline is in %v, but a long poll takes at least %v; set a later deadline", left, s.o.MinLongPolling)
	}
	return out, nil
}

// longPoll returns the time for which a receive can wait: the requested time within the bounds lo
// and hi, and short enough for the response to arrive before the client's deadline. A negative
// asked means no requested time, a negative left no deadline. It returns false if the client has
// less time than the shortest poll takes.
func longPoll(asked, left, requestTimeout, lo, hi time.Duration) (time.Duration, bool) {
	switch {
	case asked < 0 && left < 0:
		asked = hi
	case asked < 0:
		asked = left - requestTimeout/2
	}
	wait := min(max(asked, lo), hi)
	if left < 0 {
		return wait, true
	}
	if wait > left && left < lo {
		return 0, false
	}
	margin := min(left/10, maxMargin)
	return min(wait, left-margin), true
}

// maxMargin is the longest time that is reserved for the transfer of a response.
const maxMargin = 500 * time.Millisecond

// ackMessage marks deliveries as consumed.
func (s *Server) ackMessage(ctx context.Context, client string, req *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	in := req.GetEntries()
	if len(in) == 0 {
		return nil, refusal.New(tidegate.CodeBadRequest, "entries", "the request has no entries; give at least one")
	}
	group, topic, err := names(req.GetGroup(), req.GetTopic())
	if err != nil {
		return nil, err
	}
	room := acknowledged.Get().(*deliveries)
	list := room.take(len(in))
	for i, e := range in {
		fill(list[i], group, topic, e.GetMessageId(), e.GetReceiptHandle())
	}
	s.sessions.Get(client)
	results := s.messages.Ack(ctx, list)
	room.free(len(in))
	if len(results) != len(in) {
		return nil, fmt.Errorf("the engine gave %d results for %d entries", len(results), len(in))
	}
	if requests.Announces(ctx, wire.FeatureBrief) && !slices.ContainsFunc(results, func(err error) bool { return err != nil }) {
		return &rmqpb.AckMessageResponse{Status: wire.OK}, nil
	}
	out := &rmqpb.AckMessageResponse{Status: wire.OK, Entries: make([]*rmqpb.AckMessageResultEntry, len(in))}
	entries := make([]rmqpb.AckMessageResultEntry, len(in))
	for i, err := range results {
		e := &entries[i]
		out.Entries[i] = e
		e.MessageId, e.ReceiptHandle, e.Status = in[i].GetMessageId(), in[i].GetReceiptHandle(), wire.OK
		if err != nil {
			st, gerr := s.answer(ctx, "AckMessage", err)
			if gerr != nil {
				return nil, err
			}
			e.Status = st
		}
	}
	if err := refusal.Common(len(results), func(i int) error { return results[i] }); err != nil {
		// As from RocketMQ's proxy, the name of the code comes first.
		first := out.Entries[0].Status
		out.Status = &rmqpb.Status{Code: first.GetCode(), Message: first.GetCode().String() + ": " + first.GetMessage()}
	} else if slices.ContainsFunc(results, func(err error) bool { return err != nil }) {
		out.Status = requests.MultipleResults
	}
	return out, nil
}

// deliveries is memory for the arguments of an acknowledgement, of which the engine keeps nothing.
// A delivery has 352 bytes, a third of the memory of an acknowledgement.
type deliveries struct {
	all  []tidegate.Delivery
	list []*tidegate.Delivery // of all
}

var acknowledged = sync.Pool{New: func() any { return &deliveries{} }}

// take returns n empty deliveries.
func (d *deliveries) take(n int) []*tidegate.Delivery {
	if n > len(d.all) {
		d.all, d.list = make([]tidegate.Delivery, n), make([]*tidegate.Delivery, n)
		for i := range d.all {
			d.list[i] = &d.all[i]
		}
	}
	return d.list[:n]
}

// free ends the use of the n deliveries that were taken.
func (d *deliveries) free(n int) {
	clear(d.all[:n])
	acknowledged.Put(d)
}

// changeInvisibleDuration has two meanings for a push consumer. From RocketMQ's clients it reports
// a failure, and the message is delivered again after this time. With suspend, which tidegate's
// clients send, it extends the invisible time. With suspend from RocketMQ's clients of lite topics
// the message is delivered again after this time, and its attempt does not count. From other clients
// it always extends the invisible time. With the header x-tidegate-snooze it ends the delivery
// without counting its attempt, with x-tidegate-reconsume through the retry topic or by a negative
// acknowledgement. A client that requests this broker's retry interval for a failure also sends a
// time, for servers that do not know the request.
func (s *Server) changeInvisibleDuration(ctx context.Context, client string, req *rmqpb.ChangeInvisibleDurationRequest) (*rmqpb.ChangeInvisibleDurationResponse, error) {
	group, topic, err := names(req.GetGroup(), req.GetTopic())
	if err != nil {
		return nil, err
	}
	d := req.GetInvisibleDuration()
	if err := d.CheckValid(); err != nil {
		return nil, refusal.New(protocol.CodeIllegalInvisibleTime, "invisible_duration", "the invisible_duration is missing or out of range; set it")
	}
	failed := s.sessions.IsPush(client) && !req.GetSuspend()
	var delivery tidegate.Delivery
	fill(&delivery, group, topic, req.GetMessageId(), req.GetReceiptHandle())
	out := &rmqpb.ChangeInvisibleDurationResponse{Status: wire.OK, ReceiptHandle: req.GetReceiptHandle()}
	v, ends, err := wire.ChangeVerdict(func(name string) string { return requests.Header(ctx, name) }, d.AsDuration(), failed)
	if err == nil && !ends && req.GetSuspend() && s.sessions.Suspends(client) {
		v, ends = transport.Verdict{Kind: transport.Snooze, Delay: d.AsDuration()}, true
	}
	switch {
	case err != nil:
		return nil, refusal.New(tidegate.CodeBadRequest, wire.HeaderReconsume, "%s", err.Error())
	case ends:
		err = s.settle(ctx, &delivery, v)
	default:
		out.ReceiptHandle, err = s.messages.Extend(ctx, &delivery, v.Delay, requests.Header(ctx, wire.HeaderRepeat) != "")
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// settle ends a delivery by a verdict, and reports the fate of the message in a trailer. For a
// RetryTopic the client must have the right to send to the group's topics.
func (s *Server) settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) error {
	if v.Kind == transport.RetryTopic {
		if needs := auth.NeedsOfReconsume(s.engine, d); needs != nil {
			if err := s.gate.PermitRPC(ctx, "ChangeInvisibleDuration", needs...); err != nil {
				return err
			}
		}
	}
	result, err := s.messages.Settle(ctx, d, v)
	if fate := wire.FormatResult(result); err == nil && fate != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(wire.TrailerRetry, fate)) // it fails only outside a gRPC server
	}
	return err
}

// forward makes a message a dead letter.
func (s *Server) forward(ctx context.Context, client string, req *rmqpb.ForwardMessageToDeadLetterQueueRequest) (*rmqpb.ForwardMessageToDeadLetterQueueResponse, error) {
	group, topic, err := names(req.GetGroup(), req.GetTopic())
	if err != nil {
		return nil, err
	}
	s.sessions.Get(client)
	ours := metadata.ValueFromIncomingContext(ctx, wire.HeaderReason) != nil
	why := wire.VerdictReason(requests.Header(ctx, wire.HeaderReason))
	if why == "" {
		why = fmt.Sprintf("the consumer requested a dead letter after attempt %d of %d", req.GetDeliveryAttempt(), req.GetMaxDeliveryAttempts())
	}
	var delivery tidegate.Delivery
	fill(&delivery, group, topic, req.GetMessageId(), req.GetReceiptHandle())
	delivery.Attempt = int(req.GetDeliveryAttempt())
	err = s.settle(ctx, &delivery, transport.Verdict{Kind: transport.DeadLetter, Reason: why})
	if e, ok := errors.AsType[*tidegate.Error](err); ok && !ours && e.Code == tidegate.CodeInvalidReceiptHandle {
		// RocketMQ's clients repeat this request without end after any failure. The delivery is
		// over, so there is nothing that they could do.
		return &rmqpb.ForwardMessageToDeadLetterQueueResponse{Status: &rmqpb.Status{
			Code: rmqpb.Code_OK, Message: "no effect: " + refusal.Text(e),
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	return &rmqpb.ForwardMessageToDeadLetterQueueResponse{Status: wire.OK}, nil
}

// names returns the group's and the topic's name, if they can be such.
func names(group, topic *rmqpb.Resource) (string, string, error) {
	if err := tidegate.ValidateGroup(group.GetName()); err != nil {
		return "", "", err
	}
	if err := tidegate.ValidateTopic(topic.GetName()); err != nil {
		return "", "", err
	}
	return group.GetName(), topic.GetName(), nil
}

func fill(d *tidegate.Delivery, group, topic, id, handle string) {
	d.ConsumerGroup, d.Topic, d.ID, d.Handle = group, topic, id, handle
}
