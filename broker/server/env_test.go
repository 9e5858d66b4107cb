package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
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
	part   func() []*tidegate.Delivery   // a part of the response before the real one
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
	if f.part != nil && p.Stream != nil {
		if _, err := p.Stream(f.part()); err != nil {
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

// withServer runs a test in a bubble with an env.
func withServer(t *testing.T, o server.Options, f func(*testing.T, *env)) {
	synctest.Test(t, func(t *testing.T) { f(t, start(t, o)) })
}

// subtest runs a subtest in a bubble.
func subtest(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// startWith is start with an engine that has these options.
func startWith(t testing.TB, bo broker.Options, o server.Options, faults ...*faulty) *env {
	t.Helper()
	b := assert.Value(broker.Open(bo))(t)
	t.Cleanup(func() { b.Close() })
	for name, kind := range map[string]settings.TopicType{"normal": settings.TopicNormal, "fifo": settings.TopicFIFO} {
		assert.Must(t, assert.Err(b.PutTopic(t.Context(), name, settings.Topic{Type: kind, Queues: 2, DuplicateWindow: -1})))
	}
	var e server.Engine = b.Engine()
	for _, f := range faults {
		f.Engine = e
		e = f
	}
	s := assert.Value(server.NewOn(b, e, o))(t)
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
	assert.Must(e.t, err)
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
	r := assert.Value(e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: ms}))(e.t)
	assert.MustThat(e.t, r.GetStatus().GetCode() == rmqpb.Code_OK, "send: %v", r)
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
	fs := assert.Value(frames(e.ReceiveMessage(ctx, r)))(e.t)
	if len(fs) < 2 || fs[0].GetStatus() == nil || fs[len(fs)-1].GetDeliveryTimestamp() == nil {
		e.t.Fatalf("frames %v: want a status first and a delivery_timestamp last", fs)
	}
	var ms []*rmqpb.Message
	for _, f := range fs[1 : len(fs)-1] {
		assert.MustThat(e.t, f.GetMessage() != nil, "frame %v: want a message", f)
		ms = append(ms, f.GetMessage())
	}
	return fs[0].GetStatus(), ms
}

// one receives exactly one message.
func (e *env) one(ctx context.Context, r *rmqpb.ReceiveMessageRequest) *rmqpb.Message {
	e.t.Helper()
	st, ms := e.receive(ctx, r)
	assert.MustThat(e.t, st.GetCode() == rmqpb.Code_OK && len(ms) == 1, "receive: %v, %d messages; want OK and 1", st, len(ms))
	return ms[0]
}

// lease receives n messages from the engine.
func (e *env) lease(n int, r transport.ReceiveRequest) []*tidegate.Delivery {
	e.t.Helper()
	ds, err := e.b.Receive(e.t.Context(), r)
	assert.MustThat(e.t, err == nil && len(ds) == n, "received %d messages, %v; want %d", len(ds), err, n)
	return ds
}

// serve returns the response of the HTTP API to a request.
func (e *env) serve(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.s.Handler().ServeHTTP(w, r)
	return w
}

// asKey returns the response to a request over TLS with the secret of a key, or without one. The
// body is JSON.
func (e *env) asKey(key, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "https://h"+path, strings.NewReader(body))
	if key != "" {
		r.SetBasicAuth(key, secretMark+key)
	}
	if body != "" {
		r.Header.Set("Content-Type", server.TypeJSON)
	}
	return e.serve(r)
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

// A webEnv is an env with a client over HTTP, on an in-memory network.
type webEnv struct {
	*env
	client *http.Client
	server *http.Server
}

// startWeb makes a webEnv, which has the topic "delay" (DELAY) besides, and closes it with the
// test.
func startWeb(t testing.TB, o server.Options, faults ...*faulty) *webEnv {
	t.Helper()
	return startWebWith(t, broker.Options{MinInvisibleDuration: 1}, o, faults...)
}

// withWeb runs a test in a bubble with a webEnv.
func withWeb(t *testing.T, o server.Options, f func(*testing.T, *webEnv)) {
	synctest.Test(t, func(t *testing.T) { f(t, startWeb(t, o)) })
}

// startWebWith is startWeb with an engine that has these options.
func startWebWith(t testing.TB, bo broker.Options, o server.Options, faults ...*faulty) *webEnv {
	t.Helper()
	e := startWith(t, bo, o, faults...)
	assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "delay", settings.Topic{Type: settings.TopicDelay, Queues: 1})))
	lis := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	x := &webEnv{
		env: e,
		client: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return lis.dial(ctx) },
		}},
		// As in the binary: handlers that last longer have to move their deadlines.
		server: &http.Server{Handler: e.s.Handler(), ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute},
	}
	var conns sync.WaitGroup // whose handlers have not returned
	x.server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			conns.Add(1)
		case http.StateClosed, http.StateHijacked:
			conns.Done()
		}
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		x.server.Serve(lis)
	}()
	t.Cleanup(func() {
		x.client.CloseIdleConnections()
		x.server.Close()
		<-served
		conns.Wait() // net/http does not wait for handlers
	})
	return x
}

// pipes is an in-memory network, as bufconn's, whose connections keep to the
// deadlines that net/http sets all the time.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (l *pipes) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.accept <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// request makes a request; header is names and values in turn.
func (x *webEnv) request(ctx context.Context, method, path string, body io.Reader, header ...string) *http.Request {
	x.t.Helper()
	r := assert.Value(http.NewRequestWithContext(ctx, method, "http://broker.test"+path, body))(x.t)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// do sends a JSON request and reads the response into out, if out is not nil.
func (x *webEnv) do(path, body string, out any, header ...string) *http.Response {
	x.t.Helper()
	resp := assert.Value(x.client.Do(x.request(x.t.Context(), "POST", path, strings.NewReader(body), append([]string{"Content-Type", server.TypeJSON}, header...)...)))(x.t)
	defer resp.Body.Close()
	text := assert.Value(io.ReadAll(resp.Body))(x.t)
	if out != nil {
		if err := json.Unmarshal(text, out); err != nil {
			x.t.Fatalf("POST %s: %d, %v: %s", path, resp.StatusCode, err, text)
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp
}

// ok is do for a request that has to succeed.
func (x *webEnv) ok(path, body string, out any, header ...string) {
	x.t.Helper()
	resp := x.do(path, body, out, header...)
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(resp.Body)
		x.t.Fatalf("POST %s: %d %s", path, resp.StatusCode, text)
	}
}

// failed is do for a request that has to fail, and checks status, code and words of the text.
func (x *webEnv) failed(path, body string, status, code int, words ...string) server.Problem {
	x.t.Helper()
	var p server.Problem
	resp := x.do(path, body, &p)
	x.problem("POST "+path+" "+body, resp.StatusCode, p, status, code, words...)
	return p
}

func (x *webEnv) problem(what string, got int, p server.Problem, status, code int, words ...string) {
	x.t.Helper()
	what = what[:min(len(what), 150)]
	assert.That(x.t, got == status && p.Code == code, "%s: %d %+v; want %d, code %d", what, got, p, status, code)
	for _, w := range words {
		assert.That(x.t, strings.Contains(p.Detail, w), "%s: %q does not contain %q", what, p.Detail, w)
	}
}

type received struct {
	Messages []httpapi.Delivery `json:"messages"`
}

// take receives with the group "g" and fails the test unless there are n messages.
func (x *webEnv) take(topic, body string, n int) []httpapi.Delivery {
	x.t.Helper()
	got := x.takeSome(topic, body)
	assert.MustThat(x.t, len(got) == n, "received %d messages, want %d: %+v", len(got), n, got)
	return got
}

// takeSome receives with the group "g".
func (x *webEnv) takeSome(topic, body string) []httpapi.Delivery {
	x.t.Helper()
	var got received
	x.ok("/v1/groups/g/topics/"+topic+"/receive", body, &got)
	return got.Messages
}

func decode(t testing.TB, text []byte, out any) {
	t.Helper()
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
