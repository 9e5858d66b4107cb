package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/routes"
	"github.com/tidegate/tidegate/broker/server/internal/tlssniff"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A Call describes a request to [Options].Intercept. The server calls Intercept once for each RPC
// except Telemetry. It also calls Intercept for requests about messages over HTTP, with the name of
// the equivalent RPC; a stream calls it for each batch that it stores or receives. For example:
//
//	func(ctx context.Context, call server.Call, next func(context.Context) error) error {
//		err := next(ctx)
//		if call.Op == "SendMessage" {
//			return server.ErrNoAnswer // stored, but the producer gets no response
//		}
//		return err
//	}
//
// next carries out the request. It returns nil, or the [*tidegate.Error] with the status of the
// response. Partial failures, which are in the entries of the response, are nil. The server sends
// the response after Intercept has returned, and the result of Intercept determines the response:
//
//   - nil, or the error of next, wrapped or not: the response of next.
//   - another *tidegate.Error with a code: a response with this status, even if next succeeded.
//   - [ErrNoAnswer]: no response, until the client cancels.
//   - any other error: gRPC status Unavailable, as if the connection were broken;
//     over HTTP the connection does break.
//
// An error after next is a lost response: the changes of next remain, and the messages of a
// ReceiveMessage stay in flight until their invisible time ends. A second call of next carries out
// the request again, like a duplicate of the request; the last response counts. ctx ends when the
// client cancels or the server is closed.
type Call struct {
	Op       string // the RPC's name, such as "SendMessage"
	ClientID string // ID in the request; if the request has a key: name of the key, then "/", then the ID
	Topic    string // empty if the request has none
	Group    string // empty if the request has none

	// Messages is the number of messages that are sent, requested or acknowledged; 0 for other
	// requests.
	Messages int

	// MessageIDs are the IDs in the request. Nil means none.
	MessageIDs []string
}

// ErrNoAnswer is returned by [Options].Intercept to leave the request open until the client cancels
// it or the server ends.
var ErrNoAnswer = errors.New("no response")

// callOf returns the description of a request.
func callOf(op, client string, req proto.Message) Call {
	c := Call{Op: op, ClientID: client}
	switch r := req.(type) {
	case interface{ GetTopic() *rmqpb.Resource }:
		c.Topic = r.GetTopic().GetName()
	case interface{ GetMessageQueue() *rmqpb.MessageQueue }:
		c.Topic = r.GetMessageQueue().GetTopic().GetName()
	}
	if r, ok := req.(interface{ GetGroup() *rmqpb.Resource }); ok {
		c.Group = r.GetGroup().GetName()
	}
	switch r := req.(type) {
	case *rmqpb.SendMessageRequest:
		c.Messages = len(r.GetMessages())
		for _, m := range r.GetMessages() {
			c.Topic = m.GetTopic().GetName()
			c.MessageIDs = append(c.MessageIDs, m.GetSystemProperties().GetMessageId())
		}
	case *rmqpb.ReceiveMessageRequest:
		c.Messages = int(r.GetBatchSize())
	case *rmqpb.AckMessageRequest:
		c.Messages = len(r.GetEntries())
		for _, e := range r.GetEntries() {
			c.MessageIDs = append(c.MessageIDs, e.GetMessageId())
		}
	case *rmqpb.ChangeInvisibleDurationRequest:
		c.Messages, c.MessageIDs = 1, []string{r.GetMessageId()}
	case *rmqpb.ForwardMessageToDeadLetterQueueRequest:
		c.Messages, c.MessageIDs = 1, []string{r.GetMessageId()}
	case *rmqpb.EndTransactionRequest:
		c.MessageIDs = []string{r.GetMessageId()}
	}
	return c
}

// A response is the response of a unary RPC, and of PullMessage. All of them have a field status.
type response interface {
	proto.Message
	GetStatus() *rmqpb.Status
}

// An rpc serves one RPC.
type rpc[Q proto.Message, R response] struct {
	op string

	// do executes the request. Its error applies to the whole request.
	do func(s *Server, ctx context.Context, client string, req Q) (R, error)
}

// serve reads one request and responds to it. It never panics, and its error is a gRPC status.
func (r *rpc[Q, R]) serve(s *Server, ctx context.Context) (resp R, err error) {
	begin := time.Now()
	defer func() { s.requests.Observe(r.op, begin, resp.GetStatus().GetCode(), err) }()
	conn := tlssniff.InfoOf(ctx).Link.Limit()
	defer conn.End()
	if !conn.Begin() {
		return resp, errClosing
	}
	// It fails only outside a gRPC server.
	_ = grpc.SetHeader(ctx, s.features())
	var req Q
	from, err := s.gate.Authenticate(ctx, begin, r.op)
	if err != nil {
		return r.failed(s, ctx, req, err)
	}
	req, _ = req.ProtoReflect().Type().New().Interface().(Q)
	in := s.intake(ctx)
	defer in.Hold.Release()
	err = read(ctx, in, req)
	begin = time.Now() // how long it took the client to send is not ours
	if err != nil {
		return r.failed(s, ctx, req, err)
	}
	client, err := s.gate.Admit(ctx, r.op, from, req)
	if err != nil {
		return r.failed(s, ctx, req, err)
	}
	resp, err = r.carryOut(s, ctx, client, req, in)
	if err == nil {
		err = holdForResponse(ctx, &in.Hold, proto.Size(resp))
	}
	if err != nil {
		in.Hold.Release() // rejections are small
		return r.failed(s, ctx, req, err)
	}
	return resp, nil
}

// carryOut executes the request, through the middleware if there is one, which could use the
// request for longer. Otherwise it ends the use of the request's memory.
func (r *rpc[Q, R]) carryOut(s *Server, ctx context.Context, client string, req Q, in *requests.Intake) (resp R, err error) {
	if s.o.Intercept == nil {
		return r.attempt(s, ctx, client, req, in)
	}
	var done bool
	var failure error
	err = s.intercept(ctx, callOf(r.op, client, req), func(ctx context.Context) error {
		done = true
		resp, failure = r.attempt(s, ctx, client, req, nil)
		if failure != nil {
			return failure
		}
		return requests.ErrorOf(resp.GetStatus())
	}, &done)
	if err == nil {
		err = failure
	}
	return resp, err
}

// attempt executes the request and turns a panic into an error. It ends the use of the memory of
// in, unless in is nil.
func (r *rpc[Q, R]) attempt(s *Server, ctx context.Context, client string, req Q, in *requests.Intake) (resp R, err error) {
	defer s.recovered(r.op, &err)
	resp, err = r.do(s, ctx, client, req)
	if in != nil {
		in.Free() // not after a panic: part of the engine may still use the request
	}
	return resp, err
}

func (r *rpc[Q, R]) failed(s *Server, ctx context.Context, req Q, err error) (resp R, _ error) {
	if g, ok := errors.AsType[*refusal.Cut](err); ok {
		return resp, g.Status
	}
	st, gerr := s.answer(ctx, r.op, err)
	if gerr != nil {
		return resp, gerr
	}
	setPushBack(ctx, refusal.PushBackOf(err))
	resp = statusOnly[R](st)
	if changed, ok := any(resp).(*rmqpb.ChangeInvisibleDurationResponse); ok {
		in, _ := any(req).(*rmqpb.ChangeInvisibleDurationRequest)
		changed.ReceiptHandle = in.GetReceiptHandle() // the client still has this one
	}
	return resp, nil
}

// statusOnly returns the response to a request that failed as a whole.
func statusOnly[R response](st *rmqpb.Status) R {
	var none R
	m := none.ProtoReflect().New()
	m.Set(m.Descriptor().Fields().ByName("status"), protoreflect.ValueOfMessage(st.ProtoReflect()))
	resp, _ := m.Interface().(R)
	return resp
}

// recovered turns a panic of the calling function into *err.
func (s *Server) recovered(op string, err *error) {
	if v := recover(); v != nil {
		s.log.Error("panic", "operation", op, "panic", v, "stack", string(debug.Stack()))
		*err = refusal.New(tidegate.CodeInternalServerError, op, fmt.Sprintf("internal failure of the broker: %v", v))
	}
}

// asStatus turns the error of a recovered panic into a gRPC status, for streams.
func asStatus(err *error) {
	if e, ok := errors.AsType[*tidegate.Error](*err); ok {
		*err = status.Error(codes.Internal, refusal.Text(e))
	}
}

// read reads the request. Its error is a *refusal.Cut if the request did not arrive, and a
// rejection if the request is too large or there is no memory for it.
func read(ctx context.Context, in *requests.Intake, request proto.Message) error {
	refused, err := in.Read(ctx, request)
	if err != nil {
		return &refusal.Cut{Status: err}
	}
	return refused
}

// intercept runs the middleware. It returns nil if the server must send the response of next, and
// otherwise the error to respond with.
func (s *Server) intercept(ctx context.Context, call Call, next func(context.Context) error, done *bool) error {
	var last error
	err := func() (err error) {
		defer s.recovered("Intercept of "+call.Op, &err)
		return s.o.Intercept(ctx, call, func(ctx context.Context) error {
			last = next(ctx)
			return last
		})
	}()
	switch {
	case err == nil && !*done:
		return refusal.New(tidegate.CodeInternalServerError, call.Op, "Intercept returned nil without calling next, so there is no response")
	case err == nil:
		return nil
	case errors.Is(err, ErrNoAnswer):
		select {
		case <-ctx.Done():
			return &refusal.Cut{Status: status.FromContextError(ctx.Err()).Err()}
		case <-s.draining:
			return &refusal.Cut{Status: status.Error(codes.Unavailable, "the broker is closed")}
		}
	case last != nil && errors.Is(err, last):
		return nil
	}
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code != 0 {
		return err
	}
	return &refusal.Cut{Status: status.Error(codes.Unavailable, err.Error())}
}

// answer turns the failure of a request into its response: a status in the response or, if there is
// none, a gRPC status.
func (s *Server) answer(ctx context.Context, op string, err error) (*rmqpb.Status, error) {
	e, known := errors.AsType[*tidegate.Error](err)
	switch {
	case gaveUp(ctx, err):
		return nil, status.FromContextError(ctx.Err()).Err()
	case known && e.Code != 0:
		if e.Code == tidegate.CodeInternalServerError && e.Err != nil && !errors.Is(err, tidegate.ErrClosed) {
			s.storeFailed(e.Err) // the disk, most likely
			s.logFailure(ctx, "request failed", "operation", op, "error", err)
		}
		return requests.StatusOf(e), nil
	case ctx.Err() != nil:
		// The client cancelled the request or its deadline passed, so it reads no response.
		return nil, status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, tidegate.ErrClosed):
		return nil, status.Error(codes.Unavailable, "the broker is closed")
	}
	s.logFailure(ctx, "request failed", "operation", op, "error", err)
	return &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: op + ": " + err.Error()}, nil
}

// logFailure logs a failure of the broker. It is an error, unless the store has failed: then the
// broker rejects everything and has logged the cause.
func (s *Server) logFailure(ctx context.Context, text string, args ...any) {
	level := slog.LevelError
	if s.engine.Healthy() != nil {
		level = slog.LevelDebug
	}
	s.log.Log(ctx, level, text, args...)
}

// gaveUp reports whether err is the end of the request's ctx, possibly wrapped by the engine. The
// client does not read the response then, and the server has no fault.
func gaveUp(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// errClosing ends a request whose connection is closed because another connection replaces it.
var errClosing = status.Error(codes.Unavailable, "the broker closed this idle connection to accept another one")

// features returns the header of every response. A server with middleware announces no requests of
// several topics, because a Call has one.
func (s *Server) features() metadata.MD {
	if s.o.Intercept != nil {
		return requests.SingleFeatures
	}
	return requests.Features
}

func setPushBack(ctx context.Context, d time.Duration) {
	if d > 0 {
		// It fails only after the response was sent, which is later.
		_ = grpc.SetTrailer(ctx, requests.PushBack(d))
	}
}

// through executes a request about messages, through the middleware if there is one. If its error
// is a *refusal.Cut, there is no response.
func (s *Server) through(ctx context.Context, call routes.MessageCall, do func(context.Context) error) error {
	if s.o.Intercept == nil {
		return do(ctx)
	}
	var done bool
	var failure error
	err := s.intercept(ctx, Call(call), func(ctx context.Context) error {
		done = true
		failure = do(ctx)
		return failure
	}, &done)
	if err == nil {
		err = failure
	}
	return err
}
