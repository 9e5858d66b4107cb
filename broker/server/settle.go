package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

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
// clients send, it extends the invisible time. From other clients it always extends the invisible
// time. With the header x-tidegate-snooze it ends the delivery without counting its attempt, with
// x-tidegate-reconsume through the retry topic or by a negative acknowledgement. A client that
// requests this broker's retry interval for a failure also sends a time, for servers that do not
// know the request.
func (s *Server) changeInvisibleDuration(ctx context.Context, client string, req *rmqpb.ChangeInvisibleDurationRequest) (*rmqpb.ChangeInvisibleDurationResponse, error) {
	group, topic, err := names(req.GetGroup(), req.GetTopic())
	if err != nil {
		return nil, err
	}
	d := req.GetInvisibleDuration()
	if err := d.CheckValid(); err != nil {
		return nil, refusal.New(tidegate.CodeIllegalInvisibleTime, "invisible_duration", "the invisible_duration is missing or out of range; set it")
	}
	after, failed := d.AsDuration(), s.sessions.IsPush(client) && !req.GetSuspend()
	if failed && requests.BySchedule(ctx) {
		after = transport.BySchedule
	} else {
		after = max(after, transport.BySchedule+1) // too short, and nothing else
	}
	var delivery tidegate.Delivery
	fill(&delivery, group, topic, req.GetMessageId(), req.GetReceiptHandle())
	out := &rmqpb.ChangeInvisibleDurationResponse{Status: wire.OK, ReceiptHandle: req.GetReceiptHandle()}
	var v transport.Verdict
	switch {
	case requests.Header(ctx, wire.HeaderSnooze) != "":
		v = transport.Verdict{Kind: transport.Snooze, Delay: after}
	case requests.Header(ctx, wire.HeaderReconsume) != "":
		v, err = requests.Reconsume(requests.Header(ctx, wire.HeaderReconsume), after)
	case failed:
		why, _ := requests.Reason(ctx)
		v = transport.Verdict{Kind: transport.Retry, Delay: after, Reason: why}
	default:
		out.ReceiptHandle, err = s.messages.Extend(ctx, &delivery, after, requests.Header(ctx, wire.HeaderRepeat) != "")
		if err != nil {
			return nil, err
		}
		return out, nil
	}
	if err == nil {
		err = s.settle(ctx, &delivery, v)
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
	if err == nil {
		_ = grpc.SetTrailer(ctx, requests.RetryResult(result)) // it fails only outside a gRPC server
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
	why, ours := requests.Reason(ctx)
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
