package server

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/peer"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// queryRoute returns the queues of a topic. All of them are on this broker.
func (s *Server) queryRoute(ctx context.Context, client string, req *rmqpb.QueryRouteRequest) (*rmqpb.QueryRouteResponse, error) {
	// RocketMQ's Java client tries its start three times, with the stream of the first time, and
	// reports only the last failure: "Stream is already completed". Each time it asks for a route
	// before.
	if requests.Header(ctx, wire.HeaderLanguage) == requests.LanguageJava {
		if why := s.sessions.Reason(client); why != nil {
			return nil, why
		}
	}
	if err := shortRoute(req.GetTopic(), req.GetEndpoints()); err != nil {
		return nil, err
	}
	c, err := s.engine.TopicSettings(req.GetTopic().GetName())
	if err != nil {
		return nil, err
	}
	at := s.brokerAt(ctx, req.GetEndpoints())
	accept := []rmqpb.MessageType{messageTypes[c.Type]}
	out := &rmqpb.QueryRouteResponse{Status: wire.OK, MessageQueues: make([]*rmqpb.MessageQueue, c.Queues)}
	for i := range out.MessageQueues {
		out.MessageQueues[i] = &rmqpb.MessageQueue{
			Topic: req.GetTopic(), Id: int32(i), Permission: rmqpb.Permission_READ_WRITE, Broker: at, AcceptMessageTypes: accept,
		}
	}
	return out, nil
}

const (
	// maxAddresses and maxHost bound the addresses in the request of a client, because the response
	// repeats them for each queue: their number, and the bytes of one.
	maxAddresses = 64
	maxHost      = 255
)

// shortRoute rejects a request whose response would repeat too long an address.
func shortRoute(topic *rmqpb.Resource, at *rmqpb.Endpoints) error {
	if err := requests.CheckNamespace(topic); err != nil {
		return err
	}
	if n := len(at.GetAddresses()); n > maxAddresses {
		return refusal.New(tidegate.CodeIllegalAccessPoint, "endpoints", fmt.Sprintf("the endpoints have %d addresses; the limit is %d", n, maxAddresses))
	}
	for _, a := range at.GetAddresses() {
		if n := len(a.GetHost()); n > maxHost {
			return refusal.TooLong(tidegate.CodeIllegalAccessPoint, "endpoints' host", n, maxHost)
		}
	}
	return nil
}

// messageTypes are the message types that topics of each type accept. RocketMQ's clients reject
// other messages before the send.
var messageTypes = map[settings.TopicType]rmqpb.MessageType{
	settings.TopicNormal: rmqpb.MessageType_NORMAL, settings.TopicFIFO: rmqpb.MessageType_FIFO,
	settings.TopicDelay: rmqpb.MessageType_DELAY, settings.TopicTransaction: rmqpb.MessageType_TRANSACTION,
}

// queryAssignment returns the queues that a push consumer receives from: each queue for a FIFO
// group, and all queues in one receive for other groups. It creates no group, because the number of
// auto-created groups is limited.
func (s *Server) queryAssignment(ctx context.Context, _ string, req *rmqpb.QueryAssignmentRequest) (*rmqpb.QueryAssignmentResponse, error) {
	if err := shortRoute(req.GetTopic(), req.GetEndpoints()); err != nil {
		return nil, err
	}
	topic, err := s.engine.TopicSettings(req.GetTopic().GetName())
	if err != nil {
		return nil, err
	}
	if err := tidegate.ValidateGroup(req.GetGroup().GetName()); err != nil {
		return nil, err
	}
	fifo := false // as the group will be that its first receive makes
	if group, err := s.engine.GroupSettings(ctx, req.GetGroup().GetName()); err == nil {
		fifo = group.FIFO
	}
	at := s.brokerAt(ctx, req.GetEndpoints())
	assign := func(queue int) *rmqpb.Assignment {
		return &rmqpb.Assignment{MessageQueue: &rmqpb.MessageQueue{
			Topic: req.GetTopic(), Id: int32(queue), Permission: rmqpb.Permission_READ_WRITE, Broker: at,
		}}
	}
	out := &rmqpb.QueryAssignmentResponse{Status: wire.OK}
	if !fifo {
		out.Assignments = []*rmqpb.Assignment{assign(anyQueue)}
		return out, nil
	}
	for i := range topic.Queues {
		out.Assignments = append(out.Assignments, assign(i))
	}
	return out, nil
}

// anyQueue is the queue ID that means all queues of a broker.
const anyQueue = -1

func (s *Server) brokerAt(ctx context.Context, asked *rmqpb.Endpoints) *rmqpb.Broker {
	at := s.advertise
	if at == nil {
		var local net.Addr
		if p, ok := peer.FromContext(ctx); ok {
			local = p.LocalAddr
		}
		at = requests.EndpointsFor(asked, local)
	}
	return &rmqpb.Broker{Name: s.o.BrokerName, Id: 0, Endpoints: at} // clients take ID 0 for the master
}
