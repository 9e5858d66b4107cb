package rocketmq

import (
	"cmp"
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

// A request has the parameters that all unary calls share.
type request struct {
	ep      *conn.Server
	id      conn.Identity
	op      string
	subject string          // named in errors
	headers []string        // additional headers, in pairs
	session *session        // the session of the request; nil if it needs none
	gate    *conn.BatchGate // set for a request with several messages
}

// changes reports whether the request can store or settle a message. Such a request may have taken
// effect although it failed. A recall stores nothing.
func (r request) changes() bool {
	switch r.op {
	case opSend, opAck, opChange, opSnooze, opReconsume, opDeadLetter, opEnd:
		return true
	}
	return false
}

// operation returns the bit of the operation for conn.Server.Accepts.
func (r request) operation() uint32 {
	switch r.op {
	case opSend:
		return conn.Sends
	case opQueryRoute:
		return conn.Routes
	}
	return conn.Others
}

type answer interface{ GetStatus() *rmqpb.Status }

// call makes one unary call. The error is nil for the statuses OK and MULTIPLE_RESULTS, and others
// of their ranges (conn.Succeeded, conn.Divided). The response can be valid together with an error:
// its entries may have details. trailer belongs to that response.
func call[Req any, Res answer](
	ctx context.Context, c *Client, r request,
	method func(rmqpb.MessagingServiceClient, context.Context, Req, ...grpc.CallOption) (Res, error), req Req,
) (res Res, trailer metadata.MD, _ *tidegate.Error) {
	if c.isClosed() {
		return res, nil, closedError(r.op, r.subject)
	}
	await := transport.AwaitsConnection(ctx)
	var info struct {
		peer            peer.Peer
		header, trailer metadata.MD
		opts            [5]grpc.CallOption
	}
	for {
		if await {
			if err := r.ep.Await(ctx); err != nil {
				return res, nil, r.notConnected(err)
			}
		}
		opts := append(info.opts[:0], grpc.Peer(&info.peer), grpc.Trailer(&info.trailer))
		// Sends are frequent, and the header is the same for all calls of a connection. A send
		// therefore copies the header only if the server is still unknown or the request has
		// several messages.
		look := r.op != opSend || r.gate != nil || r.ep.Unknown()
		if look {
			opts = append(opts, grpc.Header(&info.header))
		}
		if r.gate != nil {
			opts = append(opts, grpc.PerRPCCredentials(r.gate))
		}
		res, err := attempt(ctx, c, r, method, req, opts)
		if err != nil && r.gate != nil && r.gate.Refused != nil {
			r.ep.Link.Load().Saw(r.gate.Refused)
			return res, nil, laneChanged(r.subject, r.ep.Key)
		}
		if err != nil {
			if fault := r.ep.Link.Load().Misconfigured(); fault != nil && info.peer.Addr == nil && status.Code(err) == codes.Unavailable {
				return res, nil, r.setupError(fault, err)
			}
			if fault := r.ep.Link.Load().WebPage(err); fault != nil {
				return res, nil, r.setupError(fault, err)
			}
			if await && info.peer.Addr == nil && ctx.Err() == nil && !c.isClosed() && status.Code(err) == codes.Unavailable {
				continue // the connection was lost before the request was written
			}
			// gRPC reports no peer for a unary call with more than one response, which fails with
			// Internal.
			sent := info.peer.Addr != nil || status.Code(err) == codes.Internal
			e := conn.OfCall(ctx, r.op, r.subject, r.ep.Key, err, sent && r.changes(), c.isClosed())
			if !sent {
				r.ep.Link.Load().Lack(e, err)
			}
			r.ep.Lapse(e, r.operation())
			return res, nil, e
		}
		if look {
			r.ep.Learn(conn.ConnectionOf(&info.peer), info.header)
		}
		if st := res.GetStatus(); !conn.Succeeded(st) && !conn.Divided(st) {
			e := conn.OfStatus(r.op, r.subject, r.ep.Key, st, info.trailer)
			e.MaybeStored = r.changes() && conn.MaybeStored(e)
			r.ep.Lapse(e, r.operation())
			if r.session != nil {
				r.session.resendIf(e)
			}
			return res, info.trailer, e
		}
		if r.op != opSend { // the entries show whether the server carried out a send
			r.ep.Accepts(r.operation())
		}
		return res, info.trailer, nil
	}
}

// attempt makes the RPC once.
func attempt[Req any, Res answer](
	ctx context.Context, c *Client, r request,
	method func(rmqpb.MessagingServiceClient, context.Context, Req, ...grpc.CallOption) (Res, error), req Req, opts []grpc.CallOption,
) (Res, error) {
	// The ctx of a producer's send has the attempt's deadline, which may be later than
	// RequestTimeout.
	if _, ok := ctx.Deadline(); !ok || r.op != opSend {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.opts.RequestTimeout)
		defer cancel()
	}
	return method(r.ep.API(), c.headers.Outgoing(ctx, r.id, r.headers...), req, opts...)
}

// setupError returns the error of a call that failed because of the address or of Options.TLS.
func (r request) setupError(f *conn.SetupFault, err error) *tidegate.Error {
	e := fail(r.op, r.subject, tidegate.CodeIllegalAccessPoint, f.Text)
	if e.Endpoint = r.ep.Key; !f.Protocol {
		e.Err = err
	}
	return e
}

// notConnected returns the error of a call that waited for a connection and got none.
func (r request) notConnected(cause error) *tidegate.Error {
	l := r.ep.Link.Load()
	return &tidegate.Error{Op: r.op, Subject: r.subject, Endpoint: r.ep.Key, Err: cause,
		NotConnected: l.Missing(), Message: cmp.Or(l.Outage(), "there was no connection to the server")}
}
