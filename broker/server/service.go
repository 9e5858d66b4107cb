package server

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/server/internal/tlssniff"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// recallMessage takes a delayed message back before its delivery time.
func (s *Server) recallMessage(ctx context.Context, _ string, req *rmqpb.RecallMessageRequest) (*rmqpb.RecallMessageResponse, error) {
	id, err := s.messages.Recall(ctx, req.GetTopic().GetName(), req.GetRecallHandle())
	if err != nil {
		return nil, err
	}
	return &rmqpb.RecallMessageResponse{Status: wire.OK, MessageId: id}, nil
}

// heartbeat records a heartbeat. If the client announces it, the heartbeat counts for all clients
// on the connection.
func (s *Server) heartbeat(ctx context.Context, client string, req *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	s.engine.Touch(client) // the client is alive, known or not, and keeps its deliveries
	if requests.Announces(ctx, wire.FeatureHeartbeats) {
		tlssniff.InfoOf(ctx).Link.Beat(time.Now())
	}
	if err := session.Serves(req.GetClientType()); err != nil {
		s.sessions.Refuse(client, s.origin(ctx, client), err, true)
		return nil, err
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
	if p.Language == requests.LanguageNode {
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
		method("QueryRoute", (*Server).queryRoute),
		method("QueryAssignment", (*Server).queryAssignment),
		method("Heartbeat", (*Server).heartbeat),
		method("NotifyClientTermination", (*Server).notifyClientTermination),
		method("SendMessage", (*Server).sendMessage),
		method("AckMessage", (*Server).ackMessage),
		method("RecallMessage", (*Server).recallMessage),
		method("ChangeInvisibleDuration", (*Server).changeInvisibleDuration),
		method("ForwardMessageToDeadLetterQueue", (*Server).forward),
		method("EndTransaction", (*Server).endTransaction),
		method("SyncLiteSubscription", (*Server).syncLiteSubscription),
		method("UpdateOffset", (*Server).updateOffset),
		method("GetOffset", (*Server).getOffset),
		method("QueryOffset", (*Server).queryOffset),
	},
	Streams: []grpc.StreamDesc{
		{StreamName: requests.RPCReceive, ServerStreams: true, Handler: streamed((*Server).receiveMessage)},
		{StreamName: opPull, ServerStreams: true, Handler: streamed((*Server).streamPull)},
		{StreamName: requests.RPCTelemetry, ServerStreams: true, ClientStreams: true, Handler: streamed((*Server).telemetry)},
	},
	Metadata: rmqpb.MessagingService_ServiceDesc.Metadata,
}

// method returns how gRPC calls an RPC that do executes.
func method[Q proto.Message, R response](op string, do func(*Server, context.Context, string, Q) (R, error)) grpc.MethodDesc {
	r := &rpc[Q, R]{op, do}
	return grpc.MethodDesc{MethodName: op, Handler: func(srv any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
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
		return &requests.Placed{Message: resp, Place: place, Last: true}, nil
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
		conn := tlssniff.InfoOf(stream.Context()).Link.Limit()
		defer conn.End()
		if !conn.Begin() {
			return errClosing
		}
		return f(s, &placedStream{stream, transit.WithPlace(stream.Context(), place), place})
	}
}
