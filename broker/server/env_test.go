package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// An env is an engine behind a server on an in-memory network, with a client.
type env struct {
	t    testing.TB
	b    *broker.Broker
	s    *server.Server
	conn *grpc.ClientConn
	rmqpb.MessagingServiceClient
	lis    *bufconn.Listener
	served chan error
}

// faulty is a real engine of messages with a method or two replaced.
type faulty struct {
	server.Engine
	append func(ctx context.Context, msgs []engine.Incoming) error // an error or panic before the real one
	poll   func(ctx context.Context) error
	after  func(ds []*tidegate.Delivery) // called with the polled deliveries
}

func (f *faulty) Append(ctx context.Context, msgs []engine.Incoming) []transportResult {
	if f.append != nil {
		if err := f.append(ctx, msgs); err != nil {
			out := make([]transportResult, len(msgs))
			for i := range out {
				out[i].Err = err
			}
			return out
		}
	}
	return f.Engine.Append(ctx, msgs)
}

func (f *faulty) Poll(ctx context.Context, p engine.Request) ([]*tidegate.Delivery, error) {
	if f.poll != nil {
		if err := f.poll(ctx); err != nil {
			return nil, err
		}
	}
	ds, err := f.Engine.Poll(ctx, p)
	if f.after != nil {
		f.after(ds)
	}
	return ds, err
}

// start makes an env with the topics "normal" (NORMAL) and "fifo" (FIFO), both of 2
// queues, and closes it with the test.
func start(t testing.TB, o server.Options, faults ...*faulty) *env {
	t.Helper()
	return startWith(t, broker.Options{MinInvisibleDuration: 1}, o, faults...)
}

// startWith is start with an engine that has these options.
func startWith(t testing.TB, bo broker.Options, o server.Options, faults ...*faulty) *env {
	t.Helper()
	b, err := broker.Open(bo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	for name, kind := range map[string]settings.TopicType{"normal": settings.TopicNormal, "fifo": settings.TopicFIFO} {
		if _, err := b.PutTopic(t.Context(), name, settings.Topic{Type: kind, Queues: 2, DuplicateWindow: -1}); err != nil {
			t.Fatal(err)
		}
	}
	var e server.Engine = b.Engine()
	for _, f := range faults {
		f.Engine = e
		e = f
	}
	s, err := server.NewOn(b, e, o)
	if err != nil {
		t.Fatal(err)
	}
	s.WrapHTTP(func(h http.Handler) http.Handler { return checkHTTP(t, h) })
	lis := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	x := &env{t: t, b: b, s: s, lis: lis, served: served}
	conn := x.dial()
	x.conn, x.MessagingServiceClient = conn, rmqpb.NewMessagingServiceClient(conn)
	t.Cleanup(func() {
		conn.Close()
		s.Close()
		if err := <-served; err != nil && !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("Serve returned %v", err)
		}
		if places, parked := s.Parts().Places.Held(), s.Parts().Parked.Held(); places != 0 || parked != 0 {
			t.Errorf("at the end, requests hold %d bytes of places and %d of waiting receives", places, parked)
		}
	})
	return x
}

// dial returns another connection to the server.
func (e *env) dial() *grpc.ClientConn {
	e.t.Helper()
	conn, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return e.lis.DialContext(ctx) }))
	if err != nil {
		e.t.Fatal(err)
	}
	return conn
}

// as returns a context with the headers of a client.
func as(ctx context.Context, id string, more ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, append([]string{wire.HeaderClientID, id}, more...)...)
}

func (e *env) ctx() context.Context { return as(e.t.Context(), "client") }

// msg returns a good message, changed by edit.
func msg(topic, id string, edit ...func(*rmqpb.Message)) *rmqpb.Message {
	m := &rmqpb.Message{
		Topic:            &rmqpb.Resource{Name: topic},
		Body:             []byte("hello"),
		SystemProperties: &rmqpb.SystemProperties{MessageId: id},
	}
	for _, f := range edit {
		f(m)
	}
	return m
}

// send stores messages and fails the test if one was rejected.
func (e *env) send(ms ...*rmqpb.Message) *rmqpb.SendMessageResponse {
	e.t.Helper()
	r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: ms})
	if err != nil {
		e.t.Fatal(err)
	}
	if r.GetStatus().GetCode() != rmqpb.Code_OK {
		e.t.Fatalf("send: %v", r)
	}
	return r
}

// receiveRequest returns one for the group "g": everything, invisible for a minute.
func receiveRequest(topic string, edit ...func(*rmqpb.ReceiveMessageRequest)) *rmqpb.ReceiveMessageRequest {
	r := &rmqpb.ReceiveMessageRequest{
		Group:             &rmqpb.Resource{Name: "g"},
		MessageQueue:      &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}, Id: -1},
		FilterExpression:  &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		BatchSize:         32,
		InvisibleDuration: durationpb.New(time.Minute),
	}
	for _, f := range edit {
		f(r)
	}
	return r
}

// frames collects a stream of responses.
func frames(stream grpc.ServerStreamingClient[rmqpb.ReceiveMessageResponse], err error) ([]*rmqpb.ReceiveMessageResponse, error) {
	if err != nil {
		return nil, err
	}
	var out []*rmqpb.ReceiveMessageResponse
	for {
		f, err := stream.Recv()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, f)
	}
}

// receive returns the status and the messages of one receive, and checks the framing.
func (e *env) receive(ctx context.Context, r *rmqpb.ReceiveMessageRequest) (*rmqpb.Status, []*rmqpb.Message) {
	e.t.Helper()
	fs, err := frames(e.ReceiveMessage(ctx, r))
	if err != nil {
		e.t.Fatal(err)
	}
	if len(fs) < 2 || fs[0].GetStatus() == nil || fs[len(fs)-1].GetDeliveryTimestamp() == nil {
		e.t.Fatalf("frames %v: want a status first and a delivery_timestamp last", fs)
	}
	var ms []*rmqpb.Message
	for _, f := range fs[1 : len(fs)-1] {
		if f.GetMessage() == nil {
			e.t.Fatalf("frame %v: want a message", f)
		}
		ms = append(ms, f.GetMessage())
	}
	return fs[0].GetStatus(), ms
}

// one receives exactly one message.
func (e *env) one(ctx context.Context, r *rmqpb.ReceiveMessageRequest) *rmqpb.Message {
	e.t.Helper()
	st, ms := e.receive(ctx, r)
	if st.GetCode() != rmqpb.Code_OK || len(ms) != 1 {
		e.t.Fatalf("receive: %v, %d messages; want OK and 1", st, len(ms))
	}
	return ms[0]
}

// named puts a name before every failure: a bubble has no subtests.
type named struct {
	testing.TB
	name string
}

func (n named) Errorf(format string, args ...any) {
	n.Helper()
	n.TB.Errorf(n.name+": "+format, args...)
}

// refused checks a status: the code, and every word of the text.
func refused(t testing.TB, st *rmqpb.Status, code tidegate.Code, words ...string) {
	t.Helper()
	if tidegate.Code(st.GetCode()) != code {
		t.Errorf("status %v; want code %d", st, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(st.GetMessage(), w) {
			t.Errorf("status text %q does not contain %q", st.GetMessage(), w)
		}
	}
}

// testLog returns a logger and its output.
func testLog() (*slog.Logger, *lockedBuffer) {
	b := &lockedBuffer{}
	return slog.New(slog.NewTextHandler(b, nil)), b
}
