package server

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Requests of RocketMQ 5 that this broker does not implement. The response has a status, because a
// gRPC status would look like a broken connection.

func notImplemented(op, instead string) error {
	return refusal.New(tidegate.CodeNotImplemented, op, "this broker does not implement "+op+": "+instead)
}

const (
	noOffsets = "the broker stores the progress of consumer groups; use ReceiveMessage and AckMessage"
	noLite    = "the broker has no lite topics"

	opPull = "PullMessage"
)

// syncLiteSubscription rejects the subscriptions of a lite consumer, and its receives, which would
// take all messages of the parent topic.
func (s *Server) syncLiteSubscription(ctx context.Context, client string, _ *rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
	err := notImplemented("SyncLiteSubscription", noLite)
	s.sessions.Refuse(client, s.origin(ctx, client), err, true)
	return nil, err
}

func (s *Server) updateOffset(context.Context, string, *rmqpb.UpdateOffsetRequest) (*rmqpb.UpdateOffsetResponse, error) {
	return nil, notImplemented("UpdateOffset", noOffsets)
}

func (s *Server) getOffset(context.Context, string, *rmqpb.GetOffsetRequest) (*rmqpb.GetOffsetResponse, error) {
	return nil, notImplemented("GetOffset", noOffsets)
}

func (s *Server) queryOffset(context.Context, string, *rmqpb.QueryOffsetRequest) (*rmqpb.QueryOffsetResponse, error) {
	return nil, notImplemented("QueryOffset", noOffsets)
}

func (s *Server) pullMessage(context.Context, string, *rmqpb.PullMessageRequest) (*rmqpb.PullMessageResponse, error) {
	return nil, notImplemented(opPull, noOffsets)
}

// streamPull responds to PullMessage with a status only.
func (s *Server) streamPull(stream grpc.ServerStream) error {
	pull := rpc[*rmqpb.PullMessageRequest, *rmqpb.PullMessageResponse]{opPull, (*Server).pullMessage}
	answer, err := pull.serve(s, stream.Context())
	if err != nil {
		return err
	}
	return stream.SendMsg(answer)
}
