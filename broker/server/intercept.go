package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/internal/admission"
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
	conn := admission.LinkInfoOf(ctx).Link.Limit()
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
		*err = refusal.New(tidegate.CodeInternalServerError, op, "internal failure of the broker: %v", v)
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
func (s *Server) through(ctx context.Context, call Call, do func(context.Context) error) error {
	if s.o.Intercept == nil {
		return do(ctx)
	}
	var done bool
	var failure error
	err := s.intercept(ctx, call, func(ctx context.Context) error {
		done = true
		failure = do(ctx)
		return failure
	}, &done)
	if err == nil {
		err = failure
	}
	return err
}

// Requests of RocketMQ 5 that this broker does not implement. The response has a status, because a
// gRPC status would look like a broken connection.

func notImplemented(op string) error {
	return refusal.New(tidegate.CodeNotImplemented, op,
		"this broker does not implement %s: the broker stores the progress of consumer groups; use ReceiveMessage and AckMessage", op)
}

const opPull = "PullMessage"

func (s *Server) updateOffset(context.Context, string, *rmqpb.UpdateOffsetRequest) (*rmqpb.UpdateOffsetResponse, error) {
	return nil, notImplemented("UpdateOffset")
}

func (s *Server) getOffset(context.Context, string, *rmqpb.GetOffsetRequest) (*rmqpb.GetOffsetResponse, error) {
	return nil, notImplemented("GetOffset")
}

func (s *Server) queryOffset(context.Context, string, *rmqpb.QueryOffsetRequest) (*rmqpb.QueryOffsetResponse, error) {
	return nil, notImplemented("QueryOffset")
}

func (s *Server) pullMessage(context.Context, string, *rmqpb.PullMessageRequest) (*rmqpb.PullMessageResponse, error) {
	return nil, notImplemented(opPull)
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

// Requests and responses hold their memory in two budgets: bodies in one, receives that are parked
// in the other, so that neither shuts out the other.

const (
	// parkedSize is the approximate memory of a waiting receive in addition to its request:
	// goroutine, stream, timer and its entries in the engine.
	parkedSize = 20 << 10

	// mostParked is the most that a parked receive takes, with the largest request and headers.
	mostParked = parkedSize + 3*requests.MaxSmallRequest + maxHeaderSize

	// bodyPart and parkedPart are the budgets' parts of the memory that Go may use, settingsPart is
	// that of the settings of clients, and mostMemory bounds each where there is more than enough.
	bodyPart     = 4
	parkedPart   = 8
	settingsPart = 16
	mostMemory   = 1 << 30

	// unknownMemory is used as the memory for Go if there is no limit.
	unknownMemory = 1 << 30
)

// fitMemory fills in the defaults that depend on how much memory Go may use, and on the largest
// body that the broker takes, in bytes, and rejects options that do not fit together.
func (o *Options) fitMemory(memory int64, maxBody int) error {
	if memory == math.MaxInt64 {
		memory = unknownMemory
	}
	least := 12*int64(maxBody) + 16<<20
	setDefault(&o.MaxTransitBytes, max(min(memory/bodyPart, mostMemory), least))
	setDefault(&o.MaxParkedBytes, min(memory/parkedPart, mostMemory))
	if o.MaxTransitBytes < least {
		return fmt.Errorf("server options: MaxTransitBytes is %d; with bodies of up to %d bytes, give %d or more", o.MaxTransitBytes, maxBody, least)
	}
	if o.MaxParkedBytes < 2*mostParked {
		return fmt.Errorf("server options: MaxParkedBytes is %d; give %d or more", o.MaxParkedBytes, 2*mostParked)
	}
	most := requests.MostOf(o.MaxTransitBytes / 2)
	setDefault(&o.MaxReceiveSize, int(min(max(defaultMaxReceiveSize, int64(maxBody)+1<<20), most)))
	if int64(o.MaxReceiveSize) > most {
		return fmt.Errorf("server options: MaxReceiveSize is %d; give %d or less, because MaxTransitBytes is %d by default on this machine", o.MaxReceiveSize, most, o.MaxTransitBytes)
	}
	return nil
}

// settingsOf returns how many bytes the settings of all clients may have, of the memory that Go may
// use.
func settingsOf(memory int64) int { return int(min(memory/settingsPart, session.MaxSettingsBytes)) }

// memoryLimit returns how much memory Go may use, in bytes: see GOMEMLIMIT.
func memoryLimit() int64 { return debug.SetMemoryLimit(-1) }

// A flood of requests is bounded in three steps, of which the first two also hold for clients
// without credentials, since gRPC takes memory for a request before it can be authenticated:
//
//   - gRPC takes no more requests of one connection at a time than maxStreams, or half of the
//     places.
//   - Reading from a connection pauses while too many handlers have not begun, some of them its
//     own, and while its client cancels too many streams, see admission.Link.
//   - A request whose handler begins takes a place of all connections' budget, and is rejected if
//     there is none. It has its place until gRPC has written the response, whether the handler has
//     returned or not, and the bytes of the response stay in the budget of bodies as long. So
//     responses that no client reads, of which HTTP/2 lets a client have any number, are bounded by
//     MaxParkedBytes/10 KiB, and their bytes by MaxTransitBytes.

const (
	// placeSize is the approximate memory of a request over gRPC outside the budgets of bodies and
	// of waiting receives: stream, headers, goroutine, and a small response that waits for the
	// client.
	placeSize = 10 << 10

	// leastPlaces is how many requests may be under way at least.
	leastPlaces = 1000
)

// placesOf returns the memory for requests over gRPC on all connections, in bytes: for twice as
// many as receives may wait, so that these leave places for other requests.
func placesOf(maxParked int64) int64 { return max(maxParked, leastPlaces*placeSize) }

// place takes the place of a request over gRPC whose handler begins. The caller calls ended when
// the handler ends. The error is a status of gRPC, which needs no place itself.
func (s *Server) place(ctx context.Context) (p *admission.Place, ended func(), err error) {
	var peer admission.PlaceOwner
	link, began := admission.LinkInfoOf(ctx).Link, time.Now()
	if link != nil {
		peer = link
	}
	link.Begun()
	ended = func() {
		if errors.Is(ctx.Err(), context.Canceled) && time.Since(began) < admission.ResetTime {
			link.Reset()
		}
	}
	if ctx.Err() != nil {
		ended()
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	if p, err = s.places.Take(peer, placeSize); err != nil {
		return nil, nil, status.Error(codes.Unavailable, err.Error())
	}
	return p, ended, nil
}

// A placedStream keeps the place of the request until gRPC has written the response.
type placedStream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // the stream's
	place *admission.Place
}

// Context implements grpc.ServerStream.
func (p *placedStream) Context() context.Context { return p.ctx }

// SendMsg implements grpc.ServerStream.
func (p *placedStream) SendMsg(m any) error {
	if _, ok := m.(*requests.Placed); ok { // a part of the response
		return p.ServerStream.SendMsg(m)
	}
	return p.ServerStream.SendMsg(&requests.Placed{Message: m, Place: p.place})
}

// opened is gRPC's tap: gRPC calls it for each stream before it starts a goroutine for it. It
// rejects none, because gRPC keeps the timers of the deadlines of those that a tap rejects. It
// counts those that gRPC will call a handler for.
func (s *Server) opened(ctx context.Context, info *tap.Info) (context.Context, error) {
	if ctx.Err() == nil && s.methods[info.FullMethodName] && len(info.Header["grpc-encoding"]) == 0 {
		admission.LinkInfoOf(ctx).Link.Opened()
	}
	return ctx, nil
}

// methodNames returns the full names of the RPCs of a service.
func methodNames(d *grpc.ServiceDesc) map[string]bool {
	names := map[string]bool{}
	for _, m := range d.Methods {
		names["/"+d.ServiceName+"/"+m.MethodName] = true
	}
	for _, m := range d.Streams {
		names["/"+d.ServiceName+"/"+m.StreamName] = true
	}
	return names
}

// connections is the server as its connections see it.
type connections struct{ s *Server }

// RefusedPlainText implements admission.LinkHost.
func (c connections) RefusedPlainText(at net.Addr) { c.s.gate.RefusedPlainText(at) }

// Ended implements admission.LinkHost. It takes back the memory of responses that gRPC has dropped
// with their connection.
func (c connections) Ended(l *admission.Link) {
	c.s.bodies.Ended(l)
	c.s.places.Ended(l)
}

// holdForResponse reserves the memory of a request over gRPC for its response, until the response
// is written. response is its size in bytes. It returns an error with code 42900 if the response is
// much larger than the held memory, and no further memory is available.
func holdForResponse(ctx context.Context, h *admission.Hold, response int) error {
	need, held := smallResponse+int64(response), h.Bytes()
	if need > largerResponse*held {
		if err := h.Resize(need, false); err != nil {
			return err
		}
		held = need
	}
	admission.PlaceOf(ctx).TakeOver(h, min(need, held))
	return nil
}

const (
	// smallResponse is the memory of gRPC and the handler for each response, in bytes.
	smallResponse = 1 << 10

	// largerResponse is how many times larger than its request's memory a response may be without
	// memory of its own: a request that was executed is not rejected afterwards.
	largerResponse = 4
)

// hold returns an empty hold for a request over gRPC.
func hold(ctx context.Context, b *admission.Budget) admission.Hold {
	if link := admission.LinkInfoOf(ctx).Link; link != nil {
		return b.Hold(link, link)
	}
	return b.Hold(nil, nil)
}

// intake returns how the requests of an RPC are read. The caller has to release its hold.
func (s *Server) intake(ctx context.Context) *requests.Intake {
	return &requests.Intake{Hold: hold(ctx, s.bodies), MaxSend: s.o.MaxReceiveSize}
}

// park reserves the memory for a waiting receive. request is the size of its request in bytes.
func (s *Server) park(ctx context.Context, request int64) (admission.Hold, error) {
	h := hold(ctx, s.parked)
	size := parkedSize + request
	md, _ := metadata.FromIncomingContext(ctx)
	for k, values := range md {
		for _, v := range values {
			size += int64(len(k) + len(v))
		}
	}
	err := h.Resize(size, true)
	return h, err
}

// deliver sends a response that holds memory, and ends the connection if the client reads it more
// slowly than admission.Pace allows.
func deliver(in *requests.Intake, send func() error) error {
	size := in.Hold.Bytes()
	if err := in.Hold.Resize(size, true); err != nil {
		return err
	}
	defer in.Hold.Watch(size).Stop()
	return send()
}

// connKey is where the context of a request over HTTP has its connection.
type connKey struct{}

// ConnContext is for the field of that name of the net/http server that runs the server's Handler.
// With it the server can close the connections of clients that neither send nor read, when
// other clients need their memory, and idle connections when there are too many. The returned
// context is derived from ctx.
func (s *Server) ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// limitOf returns the connection of a request over HTTP as the limit of connections counts it, nil
// without a limit.
func limitOf(r *http.Request) *admission.Conn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return admission.ConnOf(c)
}

// A link is the connection of a request over HTTP.
type link struct{ c net.Conn }

// End implements admission.Ender. The end of TLS would wait for the client.
func (l link) End() {
	if t, ok := l.c.(*tls.Conn); ok {
		_ = t.NetConn().Close()
		return
	}
	_ = l.c.Close()
}

// holdHTTP is hold for a request over HTTP.
func holdHTTP(r *http.Request, b *admission.Budget) admission.Hold {
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		return b.Hold(c, link{c})
	}
	return b.Hold(r.RemoteAddr, nil)
}

// parkHTTP is park for a request over HTTP: it holds the memory of a receive that waits.
func (s *Server) parkHTTP(r *http.Request) (admission.Hold, error) {
	h := holdHTTP(r, s.parked)
	err := h.Resize(parkedSize, true)
	return h, err
}

// net/http counts its deadlines from a request's header on: a response that takes longer is lost,
// with the connection or the HTTP/2 stream. They protect against clients that do not send or do not
// read. So they apply while the body is read and while the response is written, and not to the work
// between.

// untimed returns the request with a body that takes both deadlines off when it has
// been read; if there is none, they are off already.
func untimed(r *http.Request, w *answered) *http.Request {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		w.off()
		return r
	}
	out := *r // a handler may not change the one that it got
	out.Body = &lastRead{r.Body, w}
	return &out
}

// A lastRead takes the deadlines off when all was read.
type lastRead struct {
	io.ReadCloser
	response *answered
}

// Read implements io.Reader.
func (b *lastRead) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.response.off()
	}
	return n, err
}

// off takes the deadlines off the connection. If there are no deadlines, for example in a test,
// there is none to remove.
func (a *answered) off() {
	rc := http.NewResponseController(a.ResponseWriter)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
}

// allow extends the deadline for the client to read the next write.
func (a *answered) allow() {
	_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTime))
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
		resp, err := r.serve(s, admission.WithPlace(ctx, place))
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
		conn := admission.LinkInfoOf(stream.Context()).Link.Limit()
		defer conn.End()
		if !conn.Begin() {
			return errClosing
		}
		return f(s, &placedStream{stream, admission.WithPlace(stream.Context(), place), place})
	}
}
