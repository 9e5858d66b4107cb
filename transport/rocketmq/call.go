package rocketmq

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// featuresKey is the response header in which a server announces what it can
// do beyond RocketMQ 5.2.
const featuresKey = "x-tidegate-features"

// A request is what all unary calls have in common.
type request struct {
	ep      *endpoint
	id      identity
	op      string
	subject string   // of errors
	headers []string // more of them, in pairs
	session *session // in whose name it is; nil if it needs none
}

// changes reports whether the request changes something: it may have done so
// although it failed, which a question cannot.
func (r request) changes() bool {
	switch r.op {
	case opSend, opAck, opChange, opDeadLetter:
		return true
	}
	return false
}

type answer interface{ GetStatus() *rmqpb.Status }

// call makes one unary call. The error is nil for the statuses OK and
// MULTIPLE_RESULTS. The answer is valid with an error too, if there was one:
// parts of it may say more. trailer is of that answer.
func call[Req any, Res answer](
	ctx context.Context, c *Client, r request,
	method func(rmqpb.MessagingServiceClient, context.Context, Req, ...grpc.CallOption) (Res, error), req Req,
) (res Res, trailer metadata.MD, _ *tidegate.Error) {
	if c.isClosed() {
		return res, nil, closedError(r.op, r.subject)
	}
	var info struct {
		peer            peer.Peer
		header, trailer metadata.MD
		opts            [3]grpc.CallOption
	}
	opts := append(info.opts[:0], grpc.Peer(&info.peer), grpc.Trailer(&info.trailer))
	// Sends are many, and the header is the same for all: copying it once, and
	// with the calls that repeat themselves anyway, is enough.
	look := r.op != opSend || r.ep.features.Load() == nil
	if look {
		opts = append(opts, grpc.Header(&info.header))
	}
	rctx := ctx
	// A producer says how long an attempt may take, and may mean longer.
	if _, ok := ctx.Deadline(); !ok || r.op != opSend {
		var cancel context.CancelFunc
		rctx, cancel = context.WithTimeout(ctx, c.opts.RequestTimeout)
		defer cancel()
	}
	rctx = c.headers.outgoing(rctx, r.id, r.headers...)
	res, err := method(r.ep.api(), rctx, req, opts...)
	if err != nil {
		e := transportError(ctx, r.op, r.subject, r.ep.key, err, info.peer.Addr != nil && r.changes(), c.isClosed())
		r.ep.blame(ctx, e)
		return res, nil, e
	}
	r.ep.good()
	if look {
		r.ep.learn(info.header)
	}
	if st := res.GetStatus(); st.GetCode() != rmqpb.Code_OK && st.GetCode() != rmqpb.Code_MULTIPLE_RESULTS {
		e := statusError(r.op, r.subject, r.ep.key, st, info.trailer)
		e.MaybeStored = r.changes() && maybeStored(e.Code)
		return res, info.trailer, e
	}
	return res, info.trailer, nil
}

// blame notes that the endpoint failed, unless the call ended because its
// caller, whose ctx it is, did not want it any longer. A cause that matches
// ErrUnavailable is a caller who gave up on this server, as a producer does
// after an attempt's share of the time.
func (e *endpoint) blame(ctx context.Context, err *tidegate.Error) {
	if err.Code == 0 && (ctx.Err() == nil || errors.Is(context.Cause(ctx), tidegate.ErrUnavailable)) {
		e.failed.Store(e.age(time.Now()))
	}
}

// good notes that the endpoint answers.
func (e *endpoint) good() {
	if e.failed.Load() != 0 { // a plain load: every send comes here
		e.failed.Store(0)
	}
}

// learn notes what the endpoint announced.
func (e *endpoint) learn(header metadata.MD) {
	f := parseFeatures(header.Get(featuresKey))
	if old := e.features.Load(); old == nil || *old != f {
		e.features.Store(&f)
	}
}
