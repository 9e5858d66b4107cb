package rocketmq

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/combine"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
)

// severalTopics announces, as a request header, a send of messages with different topics.
const severalTopics = "topics"

// sendTogether makes one request of several sends.
func (c *Client) sendTogether(ctx context.Context, server *remote.Server, req *wire.Sendings) combine.Result {
	r := request{ep: server, id: c.id, op: opSend, headers: []string{remote.FeaturesKey, severalTopics}, gate: &remote.BatchGate{Topics: true}}
	res, trailer, err := call(ctx, c, r, sendOn[*wire.Sendings](server), req)
	return combine.Result{Response: res, Trailer: trailer, Err: err}
}

// sendOn returns the method of call for a send to a server.
func sendOn[Req any](server *remote.Server) func(rmqpb.MessagingServiceClient, context.Context, Req, ...grpc.CallOption) (*rmqpb.SendMessageResponse, error) {
	return func(_ rmqpb.MessagingServiceClient, ctx context.Context, req Req, opts ...grpc.CallOption) (*rmqpb.SendMessageResponse, error) {
		return server.SendMessage(ctx, req, opts...)
	}
}

// exchange makes the request of one send, or shares one with sends of other topics if the server
// accepts that. A send whose shared request failed as a whole for a permanent reason, which another
// send may have caused, is repeated alone: the server stored nothing.
func (c *Client) exchange(ctx context.Context, r request, req *wire.Sending) (*rmqpb.SendMessageResponse, metadata.MD, *tidegate.Error) {
	alone := func() combine.Result {
		res, trailer, err := call(ctx, c, r, sendOn[*wire.Sending](r.ep), req)
		return combine.Result{Response: res, Trailer: trailer, Err: err}
	}
	out := combine.Result{}
	await := transport.AwaitsConnection(ctx)
	for again := true; again; {
		if req.Half || !r.ep.Topics() || c.isClosed() {
			out = alone()
			break
		}
		if await {
			if err := r.ep.Await(ctx); err != nil {
				return nil, nil, r.notConnected(err)
			}
		}
		out = r.ep.Combiner.Send(ctx, req, alone)
		switch {
		case out.Left:
			return nil, nil, &tidegate.Error{Op: r.op, Subject: r.subject, Endpoint: r.ep.Key, Err: context.Cause(ctx), MaybeStored: out.Sent}
		case out.Shared > 1 && stoppedByAnother(out):
			out = alone()
		}
		again = await && out.Err != nil && out.Err.NotConnected && out.Err.Code == 0 && ctx.Err() == nil && !c.isClosed()
	}
	return out.Response, out.Trailer, out.Err
}

// stoppedByAnother reports whether a shared request stored nothing, for a reason that need not be
// this send's: another one may have no permission, or the connection accepts one topic only.
func stoppedByAnother(out combine.Result) bool {
	if out.Err == nil || out.Err.MaybeStored || len(out.Response.GetEntries()) > 0 {
		return false
	}
	return tidegate.Classify(out.Err) == tidegate.ClassPermanent || errors.Is(out.Err, transport.ErrLaneChanged)
}
