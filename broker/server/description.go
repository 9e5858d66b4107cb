package server

import (
	"context"

	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
	"google.golang.org/grpc"
)

// description is what gRPC is told of the service. The generated one would
// decode each request before anyone asks who it is from; here the handlers do it.
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
		{StreamName: rpcReceive, ServerStreams: true, Handler: streamed((*Server).receiveMessage)},
		{StreamName: pullMessage.op, ServerStreams: true, Handler: streamed((*Server).pullMessage)},
		{StreamName: rpcTelemetry, ServerStreams: true, ClientStreams: true, Handler: streamed((*Server).telemetry)},
	},
	Metadata: rmqpb.MessagingService_ServiceDesc.Metadata,
}

// method returns how gRPC calls the RPC.
func (r *rpc[Q, R]) method() grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: r.op, Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		s, _ := srv.(*Server)
		return r.serve(s, ctx, decode)
	}}
}

func streamed(f func(*Server, grpc.ServerStream) error) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		s, _ := srv.(*Server)
		return f(s, stream)
	}
}

// pullMessage answers with a status, since there is nothing else.
func (s *Server) pullMessage(stream grpc.ServerStream) error {
	a, err := pullMessage.serve(s, stream.Context(), stream.RecvMsg)
	if err != nil {
		return err
	}
	return stream.SendMsg(&rmqpb.PullMessageResponse{Content: &rmqpb.PullMessageResponse_Status{Status: a.status}})
}
