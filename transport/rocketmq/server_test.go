package rocketmq_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

const testAddr = "127.0.0.1:8081"

// A network is an in-memory network of addresses.
type network struct {
	mu    sync.Mutex
	ports map[string]*bufconn.Listener
	hang  bool // attempts to connect get no response
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l, hang := n.ports[addr], n.hang
	n.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

// A got is one call that the server received.
type got struct {
	method string
	at     time.Duration // since the server's start
	md     metadata.MD
	req    proto.Message
}

// A fakeServer is scripted by functions. newServer sets the defaults of those that are nil.
type fakeServer struct {
	rmqpb.UnimplementedMessagingServiceServer
	t     *testing.T
	net   *network
	addr  string
	grpc  *grpc.Server
	began time.Time

	mu    sync.Mutex
	calls []got

	features  string
	route     func() *rmqpb.QueryRouteResponse
	assign    func() *rmqpb.QueryAssignmentResponse
	send      func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error)
	receive   func(*rmqpb.ReceiveMessageRequest, rmqpb.MessagingService_ReceiveMessageServer) error
	ack       func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse
	change    func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse
	telemetry func(rmqpb.MessagingService_TelemetryServer) error
	heartbeat func() *rmqpb.Status
	goodbye   func()
	end       func() *rmqpb.Status // of transactions
	recall    func(context.Context) (*rmqpb.RecallMessageResponse, error)
	lite      func(*rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error)

	changeTrailer metadata.MD

	rewrite func(method string, response proto.Message) // changes responses before they are sent

	sessions atomic.Int64 // open Telemetry streams
}

var ok = &rmqpb.Status{Code: rmqpb.Code_OK}

// newServer starts a server with one queue that responds to each request with OK.
func newServer(t *testing.T, n *network, addr string) *fakeServer {
	s := &fakeServer{t: t, net: n, addr: addr, began: time.Now()}
	s.route = func() *rmqpb.QueryRouteResponse {
		return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(addr, "broker-a", 1)}
	}
	s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
		return sentAll(r), nil
	}
	s.assign = func() *rmqpb.QueryAssignmentResponse {
		res := &rmqpb.QueryAssignmentResponse{Status: ok}
		for _, q := range s.route().GetMessageQueues() {
			res.Assignments = append(res.Assignments, &rmqpb.Assignment{
				MessageQueue: &rmqpb.MessageQueue{Id: transport.AnyQueue, Broker: q.GetBroker()}})
		}
		return res
	}
	s.telemetry = s.answerSettings
	s.lite = func(*rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
		return &rmqpb.SyncLiteSubscriptionResponse{Status: ok}, nil
	}
	s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
		return &rmqpb.ChangeInvisibleDurationResponse{Status: ok}
	}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *fakeServer) start() {
	l := bufconn.Listen(1 << 20)
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(32<<20), grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream))
	rmqpb.RegisterMessagingServiceServer(s.grpc, s)
	s.net.mu.Lock()
	s.net.ports[s.addr] = l
	s.net.mu.Unlock()
	go s.grpc.Serve(l)
}

// stop ends the server as a killed process does.
func (s *fakeServer) stop() {
	s.net.mu.Lock()
	delete(s.net.ports, s.addr)
	s.net.mu.Unlock()
	s.grpc.Stop()
}

func (s *fakeServer) note(ctx context.Context, method string, req any) {
	md, _ := metadata.FromIncomingContext(ctx)
	m, _ := req.(proto.Message)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, got{method: methodOf(method), at: time.Since(s.began), md: md, req: m})
}

// of returns the calls of a method so far.
func (s *fakeServer) of(method string) []got {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []got
	for _, c := range s.calls {
		if c.method == method {
			list = append(list, c)
		}
	}
	return list
}

func (s *fakeServer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	s.note(ctx, info.FullMethod, req)
	if s.features != "" {
		grpc.SetHeader(ctx, metadata.Pairs(wire.HeaderFeatures, s.features))
	}
	res, err := next(ctx, req)
	if m, isMessage := res.(proto.Message); isMessage && err == nil && s.rewrite != nil {
		m = proto.Clone(m)
		s.rewrite(methodOf(info.FullMethod), m)
		return m, nil
	}
	return res, err
}

func methodOf(full string) string { return full[len("/apache.rocketmq.v2.MessagingService/"):] }

// A rewritten is a stream whose responses are changed before they are sent.
type rewritten struct {
	grpc.ServerStream
	s      *fakeServer
	method string
}

func (r rewritten) SendMsg(m any) error {
	c := proto.Clone(m.(proto.Message))
	r.s.rewrite(r.method, c)
	return r.ServerStream.SendMsg(c)
}

func (s *fakeServer) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	s.note(ss.Context(), info.FullMethod, nil)
	if s.features != "" {
		ss.SetHeader(metadata.Pairs(wire.HeaderFeatures, s.features))
	}
	if s.rewrite != nil {
		ss = rewritten{ss, s, methodOf(info.FullMethod)}
	}
	return next(srv, ss)
}

func (s *fakeServer) QueryRoute(context.Context, *rmqpb.QueryRouteRequest) (*rmqpb.QueryRouteResponse, error) {
	return s.route(), nil
}

func (s *fakeServer) QueryAssignment(context.Context, *rmqpb.QueryAssignmentRequest) (*rmqpb.QueryAssignmentResponse, error) {
	return s.assign(), nil
}

func (s *fakeServer) SendMessage(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	return s.send(ctx, r)
}

func (s *fakeServer) ReceiveMessage(r *rmqpb.ReceiveMessageRequest, st rmqpb.MessagingService_ReceiveMessageServer) error {
	s.note(st.Context(), "/apache.rocketmq.v2.MessagingService/receive", r)
	return s.receive(r, st)
}

func (s *fakeServer) AckMessage(_ context.Context, r *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	return s.ack(r), nil
}

func (s *fakeServer) ChangeInvisibleDuration(ctx context.Context, r *rmqpb.ChangeInvisibleDurationRequest) (*rmqpb.ChangeInvisibleDurationResponse, error) {
	grpc.SetTrailer(ctx, s.changeTrailer)
	return s.change(r), nil
}

func (s *fakeServer) ForwardMessageToDeadLetterQueue(context.Context, *rmqpb.ForwardMessageToDeadLetterQueueRequest) (*rmqpb.ForwardMessageToDeadLetterQueueResponse, error) {
	return &rmqpb.ForwardMessageToDeadLetterQueueResponse{Status: ok}, nil
}

func (s *fakeServer) Heartbeat(context.Context, *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	if s.heartbeat != nil {
		return &rmqpb.HeartbeatResponse{Status: s.heartbeat()}, nil
	}
	return &rmqpb.HeartbeatResponse{Status: ok}, nil
}

func (s *fakeServer) NotifyClientTermination(context.Context, *rmqpb.NotifyClientTerminationRequest) (*rmqpb.NotifyClientTerminationResponse, error) {
	if s.goodbye != nil {
		s.goodbye()
	}
	return &rmqpb.NotifyClientTerminationResponse{Status: ok}, nil
}

func (s *fakeServer) Telemetry(st rmqpb.MessagingService_TelemetryServer) error {
	s.sessions.Add(1)
	defer s.sessions.Add(-1)
	return s.telemetry(st)
}

// openSessions returns the number of sessions once nothing is under way.
func (s *fakeServer) openSessions() int {
	synctest.Wait()
	return int(s.sessions.Load())
}

// answerSettings serves a Telemetry stream as RocketMQ does, and notes the
// client's commands as calls of "settings" and "command".
func (s *fakeServer) answerSettings(st rmqpb.MessagingService_TelemetryServer) error {
	for {
		cmd, err := st.Recv()
		if err != nil {
			return nil
		}
		kind := "command"
		if cmd.GetSettings() != nil {
			kind = "settings"
		}
		s.note(st.Context(), "/apache.rocketmq.v2.MessagingService/"+kind, cmd)
		if kind == "settings" {
			st.Send(serverSettings(cmd.GetSettings()))
		}
	}
}

// serverSettings returns the settings with which RocketMQ 5.2 responds to those of a client.
func serverSettings(x *rmqpb.Settings) *rmqpb.TelemetryCommand {
	if p := x.GetPublishing(); p != nil {
		p.MaxBodySize = 4 << 20
		x.BackoffPolicy = &rmqpb.RetryPolicy{MaxAttempts: 3, Strategy: &rmqpb.RetryPolicy_ExponentialBackoff{
			ExponentialBackoff: &rmqpb.ExponentialBackoff{
				Initial: durationpb.New(10 * time.Millisecond), Max: durationpb.New(time.Second), Multiplier: 2}}}
	}
	if sub := x.GetSubscription(); sub != nil {
		sub.Fifo = new(true)
		sub.ReceiveBatchSize = new(int32(32))
		sub.LongPollingTimeout = durationpb.New(20 * time.Second)
		x.BackoffPolicy = wireLadder(17, 1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
	}
	return &rmqpb.TelemetryCommand{Status: ok, Command: &rmqpb.TelemetryCommand_Settings{Settings: x}}
}

// wireLadder is a policy of steps in seconds.
func wireLadder(attempts int32, seconds ...int64) *rmqpb.RetryPolicy {
	c := new(rmqpb.CustomizedBackoff)
	for _, s := range seconds {
		c.Next = append(c.Next, &durationpb.Duration{Seconds: s})
	}
	return &rmqpb.RetryPolicy{MaxAttempts: attempts, Strategy: &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: c}}
}

// queues returns n queues of a broker at addr, readable and writable.
func queues(addr, name string, n int) []*rmqpb.MessageQueue {
	pb, err := conn.ParseAddresses(addr)
	if err != nil {
		panic(err)
	}
	var list []*rmqpb.MessageQueue
	for i := range n {
		list = append(list, &rmqpb.MessageQueue{
			Id: int32(i), Permission: rmqpb.Permission_READ_WRITE,
			Broker: &rmqpb.Broker{Name: name, Endpoints: pb},
		})
	}
	return list
}

func sentAll(r *rmqpb.SendMessageRequest) *rmqpb.SendMessageResponse {
	res := &rmqpb.SendMessageResponse{Status: ok}
	for i, m := range r.GetMessages() {
		res.Entries = append(res.Entries, &rmqpb.SendResultEntry{
			Status: ok, MessageId: m.GetSystemProperties().GetMessageId(), Offset: int64(40 + i)})
	}
	return res
}

// served runs a test in a bubble, with a server and a client of it.
func served(t *testing.T, test func(t *testing.T, s *fakeServer, c *rocketmq.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, newNetwork(), testAddr)
		test(t, s, newClient(t, s.net, nil))
	})
}

// serving runs a test in a bubble, with a server.
func serving(t *testing.T, test func(t *testing.T, s *fakeServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newServer(t, newNetwork(), testAddr)) })
}

// servedAs runs a subtest by served.
func servedAs(t *testing.T, name string, test func(t *testing.T, s *fakeServer, c *rocketmq.Client)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { served(t, test) })
}

// routed returns a route that does not change.
func routed(qs []*rmqpb.MessageQueue) func() *rmqpb.QueryRouteResponse {
	return func() *rmqpb.QueryRouteResponse { return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: qs} }
}

func newNetwork() *network { return &network{ports: map[string]*bufconn.Listener{}} }

// newClient returns a client on the network that is closed with the test, with
// a connection backoff without chance.
func newClient(t *testing.T, n *network, change func(*rocketmq.Options)) *rocketmq.Client {
	t.Helper()
	o := rocketmq.Options{Dialer: n.dial}
	o.ConnectBackoff.Jitter = backoff.NoJitter
	o.ConnectBackoff.Initial = time.Second
	o.ConnectBackoff.Multiplier = 1.6
	o.ConnectBackoff.Max = 120 * time.Second
	o.ConnectBackoff.MinConnectTimeout = 20 * time.Second
	if change != nil {
		change(&o)
	}
	c := assert.Value(rocketmq.New(testAddr, o))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func (s *fakeServer) RecallMessage(ctx context.Context, r *rmqpb.RecallMessageRequest) (*rmqpb.RecallMessageResponse, error) {
	if s.recall != nil {
		return s.recall(ctx)
	}
	return s.UnimplementedMessagingServiceServer.RecallMessage(ctx, r)
}

func (s *fakeServer) SyncLiteSubscription(_ context.Context, r *rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
	return s.lite(r)
}

func (s *fakeServer) EndTransaction(context.Context, *rmqpb.EndTransactionRequest) (*rmqpb.EndTransactionResponse, error) {
	if s.end != nil {
		return &rmqpb.EndTransactionResponse{Status: s.end()}, nil
	}
	return &rmqpb.EndTransactionResponse{Status: ok}, nil
}

// delivered returns a message as a server delivers it, changed by change if that is not nil.
func delivered(change func(*rmqpb.Message)) *rmqpb.Message {
	m := &rmqpb.Message{
		Topic: &rmqpb.Resource{Name: "t"}, Body: []byte("hello"), UserProperties: map[string]string{"p": "v"},
		SystemProperties: &rmqpb.SystemProperties{
			Tag: new("a"), Keys: []string{"k"}, MessageId: "id", BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: rmqpb.MessageType_FIFO,
			BodyDigest:    &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: "5D41402ABC4B2A76B9719D911017C592"},
			BornTimestamp: timestamppb.New(time.Unix(10, 0)), BornHost: "born", StoreTimestamp: timestamppb.New(time.Unix(11, 0)), StoreHost: "store",
			DeliveryTimestamp: timestamppb.New(time.Unix(12, 0)), ReceiptHandle: new("h"), QueueId: 3, QueueOffset: new(int64(4)),
			DeliveryAttempt: new(int32(5)), MessageGroup: new("g"), TraceContext: new("tc"),
		},
	}
	if change != nil {
		change(m)
	}
	return m
}
