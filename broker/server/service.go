package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/sniff"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/broker/server/internal/wire"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

var (
	queryRoute = rpc[*rmqpb.QueryRouteRequest, *rmqpb.QueryRouteResponse]{
		op: "QueryRoute",
		describe: func(req *rmqpb.QueryRouteRequest, c *Call) {
			c.Topic = req.GetTopic().GetName()
		},
		do: (*Server).queryRoute,
		fail: func(_ *rmqpb.QueryRouteRequest, st *rmqpb.Status) *rmqpb.QueryRouteResponse {
			return &rmqpb.QueryRouteResponse{Status: st}
		},
	}
	queryAssignment = rpc[*rmqpb.QueryAssignmentRequest, *rmqpb.QueryAssignmentResponse]{
		op: "QueryAssignment",
		describe: func(req *rmqpb.QueryAssignmentRequest, c *Call) {
			c.Topic, c.Group = req.GetTopic().GetName(), req.GetGroup().GetName()
		},
		do: (*Server).queryAssignment,
		fail: func(_ *rmqpb.QueryAssignmentRequest, st *rmqpb.Status) *rmqpb.QueryAssignmentResponse {
			return &rmqpb.QueryAssignmentResponse{Status: st}
		},
	}
	heartbeat = rpc[*rmqpb.HeartbeatRequest, *rmqpb.HeartbeatResponse]{
		op: "Heartbeat",
		describe: func(req *rmqpb.HeartbeatRequest, c *Call) {
			c.Group = req.GetGroup().GetName()
		},
		do: (*Server).heartbeat,
		fail: func(_ *rmqpb.HeartbeatRequest, st *rmqpb.Status) *rmqpb.HeartbeatResponse {
			return &rmqpb.HeartbeatResponse{Status: st}
		},
	}
	notifyClientTermination = rpc[*rmqpb.NotifyClientTerminationRequest, *rmqpb.NotifyClientTerminationResponse]{
		op: "NotifyClientTermination",
		describe: func(req *rmqpb.NotifyClientTerminationRequest, c *Call) {
			c.Group = req.GetGroup().GetName()
		},
		do: (*Server).notifyClientTermination,
		fail: func(_ *rmqpb.NotifyClientTerminationRequest, st *rmqpb.Status) *rmqpb.NotifyClientTerminationResponse {
			return &rmqpb.NotifyClientTerminationResponse{Status: st}
		},
	}
	sendMessage = rpc[*rmqpb.SendMessageRequest, *rmqpb.SendMessageResponse]{
		op: "SendMessage",
		describe: func(req *rmqpb.SendMessageRequest, c *Call) {
			c.Messages = len(req.GetMessages())
			for _, m := range req.GetMessages() {
				c.Topic = m.GetTopic().GetName()
				c.MessageIDs = append(c.MessageIDs, m.GetSystemProperties().GetMessageId())
			}
		},
		do: (*Server).sendMessage,
		fail: func(_ *rmqpb.SendMessageRequest, st *rmqpb.Status) *rmqpb.SendMessageResponse {
			return &rmqpb.SendMessageResponse{Status: st}
		},
	}
	ackMessage = rpc[*rmqpb.AckMessageRequest, *rmqpb.AckMessageResponse]{
		op: "AckMessage",
		describe: func(req *rmqpb.AckMessageRequest, c *Call) {
			c.Topic, c.Group = req.GetTopic().GetName(), req.GetGroup().GetName()
			c.Messages = len(req.GetEntries())
			for _, e := range req.GetEntries() {
				c.MessageIDs = append(c.MessageIDs, e.GetMessageId())
			}
		},
		do: (*Server).ackMessage,
		fail: func(_ *rmqpb.AckMessageRequest, st *rmqpb.Status) *rmqpb.AckMessageResponse {
			return &rmqpb.AckMessageResponse{Status: st}
		},
	}
	recallMessage = rpc[*rmqpb.RecallMessageRequest, *rmqpb.RecallMessageResponse]{
		op:       "RecallMessage",
		describe: func(req *rmqpb.RecallMessageRequest, c *Call) { c.Topic = req.GetTopic().GetName() },
		do: func(s *Server, ctx context.Context, _ string, req *rmqpb.RecallMessageRequest) (*rmqpb.RecallMessageResponse, error) {
			id, err := s.b.Recall(ctx, req.GetTopic().GetName(), req.GetRecallHandle())
			if err != nil {
				return nil, err
			}
			return &rmqpb.RecallMessageResponse{Status: wire.OK, MessageId: id}, nil
		},
		fail: func(_ *rmqpb.RecallMessageRequest, st *rmqpb.Status) *rmqpb.RecallMessageResponse {
			return &rmqpb.RecallMessageResponse{Status: st}
		},
	}
	changeInvisibleDuration = rpc[*rmqpb.ChangeInvisibleDurationRequest, *rmqpb.ChangeInvisibleDurationResponse]{
		op: "ChangeInvisibleDuration",
		describe: func(req *rmqpb.ChangeInvisibleDurationRequest, c *Call) {
			c.Topic, c.Group, c.Messages = req.GetTopic().GetName(), req.GetGroup().GetName(), 1
			c.MessageIDs = []string{req.GetMessageId()}
		},
		do: (*Server).changeInvisibleDuration,
		fail: func(req *rmqpb.ChangeInvisibleDurationRequest, st *rmqpb.Status) *rmqpb.ChangeInvisibleDurationResponse {
			return &rmqpb.ChangeInvisibleDurationResponse{Status: st, ReceiptHandle: req.GetReceiptHandle()}
		},
	}
	forward = rpc[*rmqpb.ForwardMessageToDeadLetterQueueRequest, *rmqpb.ForwardMessageToDeadLetterQueueResponse]{
		op: "ForwardMessageToDeadLetterQueue",
		describe: func(req *rmqpb.ForwardMessageToDeadLetterQueueRequest, c *Call) {
			c.Topic, c.Group, c.Messages = req.GetTopic().GetName(), req.GetGroup().GetName(), 1
			c.MessageIDs = []string{req.GetMessageId()}
		},
		do: (*Server).forward,
		fail: func(_ *rmqpb.ForwardMessageToDeadLetterQueueRequest, st *rmqpb.Status) *rmqpb.ForwardMessageToDeadLetterQueueResponse {
			return &rmqpb.ForwardMessageToDeadLetterQueueResponse{Status: st}
		},
	}
)

// heartbeat records a heartbeat. If the client announces it, the heartbeat counts for all clients
// on the connection.
func (s *Server) heartbeat(ctx context.Context, client string, req *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	s.b.Touch(client) // the client is alive, known or not, and keeps its deliveries
	if wire.Announces(ctx, wire.FeatureHeartbeats) {
		sniff.InfoOf(ctx).Link.Beat(time.Now())
	}
	c := s.sessions.Get(client)
	if c == nil || c.Profile() == nil {
		return nil, refusal.New(protocol.CodeUnrecognizedClientType, client,
			"the broker has no settings of this client; open a Telemetry stream and send them")
	}
	if group := req.GetGroup().GetName(); group != "" {
		if err := tidegate.ValidateGroup(group); err != nil {
			return nil, err
		}
	}
	p := c.Profile()
	if p == nil {
		return &rmqpb.HeartbeatResponse{Status: wire.OK}, nil
	}
	if p.Language == wire.LanguageNode {
		// RocketMQ's Node client can lose the first settings, and then waits for others.
		s.sessions.Resend(c)
	} else if now, err := s.settings(ctx, p); err == nil && !c.Sent(now) {
		s.sessions.Resend(c) // the group was changed since
	}
	return &rmqpb.HeartbeatResponse{Status: wire.OK}, nil
}

// notifyClientTermination removes the client and ends its parked receives.
func (s *Server) notifyClientTermination(_ context.Context, client string, _ *rmqpb.NotifyClientTerminationRequest) (*rmqpb.NotifyClientTerminationResponse, error) {
	s.sessions.Terminate(client)
	return &rmqpb.NotifyClientTerminationResponse{Status: wire.OK}, nil
}

// description is the description of the service for gRPC. The generated one would read and decode
// each request before authentication. Here the handlers decode.
var description = grpc.ServiceDesc{
	ServiceName: rmqpb.MessagingService_ServiceDesc.ServiceName,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		queryRoute.method(), queryAssignment.method(), heartbeat.method(), notifyClientTermination.method(),
		sendMessage.method(), ackMessage.method(), recallMessage.method(), changeInvisibleDuration.method(), forward.method(),
		endTransaction.method(),
		syncLiteSubscription.method(), updateOffset.method(), getOffset.method(), queryOffset.method(),
	},
	Streams: []grpc.StreamDesc{
		{StreamName: wire.RPCReceive, ServerStreams: true, Handler: streamed((*Server).receiveMessage)},
		{StreamName: pullMessage.op, ServerStreams: true, Handler: streamed((*Server).pullMessage)},
		{StreamName: wire.RPCTelemetry, ServerStreams: true, ClientStreams: true, Handler: streamed((*Server).telemetry)},
	},
	Metadata: rmqpb.MessagingService_ServiceDesc.Metadata,
}

// method returns how gRPC calls the RPC.
func (r *rpc[Q, R]) method() grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: r.op, Handler: func(srv any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		s, _ := srv.(*Server)
		place, ended, err := s.place(ctx)
		if err != nil {
			return nil, err
		}
		defer ended()
		resp, err := r.serve(s, transit.WithPlace(ctx, place))
		if err != nil {
			place.End()
			return nil, err
		}
		return &wire.Placed{Message: resp, Place: place, Last: true}, nil
	}}
}

// streamed returns how gRPC calls an RPC with a stream.
func streamed(f func(*Server, grpc.ServerStream) error) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		s, _ := srv.(*Server)
		place, ended, err := s.place(stream.Context())
		if err != nil {
			return err
		}
		defer ended()
		defer place.End()
		conn := sniff.InfoOf(stream.Context()).Link.Limit()
		defer conn.End()
		if !conn.Begin() {
			return errClosing
		}
		return f(s, &placedStream{stream, transit.WithPlace(stream.Context(), place), place})
	}
}
