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
)

var (
	syncLiteSubscription = rpc[*rmqpb.SyncLiteSubscriptionRequest, *rmqpb.SyncLiteSubscriptionResponse]{
		op: "SyncLiteSubscription",
		describe: func(req *rmqpb.SyncLiteSubscriptionRequest, c *Call) {
			c.Topic, c.Group = req.GetTopic().GetName(), req.GetGroup().GetName()
		},
		do: func(*Server, context.Context, string, *rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
			return nil, notImplemented("SyncLiteSubscription", noLite)
		},
		fail: func(_ *rmqpb.SyncLiteSubscriptionRequest, st *rmqpb.Status) *rmqpb.SyncLiteSubscriptionResponse {
			return &rmqpb.SyncLiteSubscriptionResponse{Status: st}
		},
	}
	updateOffset = rpc[*rmqpb.UpdateOffsetRequest, *rmqpb.UpdateOffsetResponse]{
		op: "UpdateOffset",
		describe: func(req *rmqpb.UpdateOffsetRequest, c *Call) {
			c.Topic, c.Group = req.GetMessageQueue().GetTopic().GetName(), req.GetGroup().GetName()
		},
		do: func(*Server, context.Context, string, *rmqpb.UpdateOffsetRequest) (*rmqpb.UpdateOffsetResponse, error) {
			return nil, notImplemented("UpdateOffset", noOffsets)
		},
		fail: func(_ *rmqpb.UpdateOffsetRequest, st *rmqpb.Status) *rmqpb.UpdateOffsetResponse {
			return &rmqpb.UpdateOffsetResponse{Status: st}
		},
	}
	getOffset = rpc[*rmqpb.GetOffsetRequest, *rmqpb.GetOffsetResponse]{
		op: "GetOffset",
		describe: func(req *rmqpb.GetOffsetRequest, c *Call) {
			c.Topic, c.Group = req.GetMessageQueue().GetTopic().GetName(), req.GetGroup().GetName()
		},
		do: func(*Server, context.Context, string, *rmqpb.GetOffsetRequest) (*rmqpb.GetOffsetResponse, error) {
			return nil, notImplemented("GetOffset", noOffsets)
		},
		fail: func(_ *rmqpb.GetOffsetRequest, st *rmqpb.Status) *rmqpb.GetOffsetResponse {
			return &rmqpb.GetOffsetResponse{Status: st}
		},
	}
	queryOffset = rpc[*rmqpb.QueryOffsetRequest, *rmqpb.QueryOffsetResponse]{
		op: "QueryOffset",
		describe: func(req *rmqpb.QueryOffsetRequest, c *Call) {
			c.Topic = req.GetMessageQueue().GetTopic().GetName()
		},
		do: func(*Server, context.Context, string, *rmqpb.QueryOffsetRequest) (*rmqpb.QueryOffsetResponse, error) {
			return nil, notImplemented("QueryOffset", noOffsets)
		},
		fail: func(_ *rmqpb.QueryOffsetRequest, st *rmqpb.Status) *rmqpb.QueryOffsetResponse {
			return &rmqpb.QueryOffsetResponse{Status: st}
		},
	}
	pullMessage = rpc[*rmqpb.PullMessageRequest, *rmqpb.PullMessageResponse]{
		op: "PullMessage",
		describe: func(req *rmqpb.PullMessageRequest, c *Call) {
			c.Topic, c.Group = req.GetMessageQueue().GetTopic().GetName(), req.GetGroup().GetName()
		},
		do: func(*Server, context.Context, string, *rmqpb.PullMessageRequest) (*rmqpb.PullMessageResponse, error) {
			return nil, notImplemented("PullMessage", noOffsets)
		},
		fail: func(_ *rmqpb.PullMessageRequest, st *rmqpb.Status) *rmqpb.PullMessageResponse {
			return &rmqpb.PullMessageResponse{Content: &rmqpb.PullMessageResponse_Status{Status: st}}
		},
	}
)

// pullMessage responds with a status only.
func (s *Server) pullMessage(stream grpc.ServerStream) error {
	answer, err := pullMessage.serve(s, stream.Context())
	if err != nil {
		return err
	}
	return stream.SendMsg(answer)
}
