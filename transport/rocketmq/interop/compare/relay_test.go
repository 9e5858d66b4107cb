package main

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// relayPatience bounds every wait of a test that passes.
const relayPatience = 20 * time.Second

// A fakeProxy is a server behind the relay. It counts the sends that reach it.
type fakeProxy struct {
	v2.UnimplementedMessagingServiceServer
	sends atomic.Int64
}

func (p *fakeProxy) SendMessage(_ context.Context, r *v2.SendMessageRequest) (*v2.SendMessageResponse, error) {
	p.sends.Add(1)
	return &v2.SendMessageResponse{Status: &v2.Status{Code: v2.Code_OK}, Entries: []*v2.SendResultEntry{{
		MessageId: r.GetMessages()[0].GetSystemProperties().GetMessageId(),
	}}}, nil
}

// ReceiveMessage responds at once with an empty stream.
func (p *fakeProxy) ReceiveMessage(_ *v2.ReceiveMessageRequest, s v2.MessagingService_ReceiveMessageServer) error {
	return s.Send(&v2.ReceiveMessageResponse{Content: &v2.ReceiveMessageResponse_Status{Status: &v2.Status{Code: v2.Code_MESSAGE_NOT_FOUND}}})
}

// A fixture is a client of a proxy behind a relay.
type fixture struct {
	t      *testing.T
	relay  *relay
	proxy  *fakeProxy
	conn   *grpc.ClientConn
	client v2.MessagingServiceClient
	lose   atomic.Bool // the next decision on a response
}

func start(t *testing.T) *fixture {
	f := &fixture{t: t, proxy: &fakeProxy{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer() // which ends connections with more than two pings in five minutes
	v2.RegisterMessagingServiceServer(s, f.proxy)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	f.relay, err = listenRelay(l.Addr().String(), func() float64 {
		if f.lose.Load() {
			return 0
		}
		return 1
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.relay.Close)
	f.conn, err = grpc.NewClient(f.relay.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.conn.Close() })
	f.client = v2.NewMessagingServiceClient(f.conn)
	return f
}

// send sends a message and returns its ID as the response has it, and the code of the response.
func (f *fixture) send(limit time.Duration) (id string, code v2.Code, err error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), limit)
	defer cancel()
	// A body of 1 KiB, so that in the tests with many messages the flow-control windows run out.
	r, err := f.client.SendMessage(ctx, &v2.SendMessageRequest{Messages: []*v2.Message{{
		SystemProperties: &v2.SystemProperties{MessageId: "m1"}, Body: make([]byte, 1024),
	}}}, grpc.WaitForReady(true))
	if len(r.GetEntries()) > 0 {
		id = r.GetEntries()[0].GetMessageId()
	}
	return id, r.GetStatus().GetCode(), err
}

func (f *fixture) mustSend() {
	f.t.Helper()
	if id, code, err := f.send(relayPatience); id != "m1" || code != v2.Code_OK || err != nil {
		f.t.Fatalf("a send returned %q, %v, %v", id, code, err)
	}
}

func TestReset(t *testing.T) {
	f := start(t)
	f.mustSend()
	f.relay.Set(fault{Reset: true})
	ctx, cancel := context.WithTimeout(t.Context(), relayPatience)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.relay.Address())
	if err == nil { // the reset can come after the handshake
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	if err == nil {
		t.Error("a new connection was not reset")
	}
	if _, err := f.client.SendMessage(ctx, &v2.SendMessageRequest{Messages: []*v2.Message{{}}}); status.Code(err) != codes.Unavailable {
		t.Errorf("a send without a connection returned %v", err)
	}
	f.relay.Set(fault{})
	f.conn.ResetConnectBackoff()
	f.mustSend()
	if n := f.proxy.sends.Load(); n != 2 {
		t.Errorf("the server received %d sends, want 2", n)
	}
}

// More responses are lost than the windows of a connection hold, so a relay that returns no window
// would block the server.
func TestLosesResponses(t *testing.T) {
	f := start(t)
	f.mustSend()
	const lost = 1500 // of more than 50 bytes each; a window is 65 535 bytes
	f.relay.Set(fault{LoseResponses: 0.5})
	f.lose.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	for range lost {
		go f.client.SendMessage(ctx, &v2.SendMessageRequest{Messages: []*v2.Message{{SystemProperties: &v2.SystemProperties{MessageId: "m1"}}}})
	}
	for f.proxy.sends.Load() < lost+1 { // the requests still arrive
		if _, _, err := f.send(time.Millisecond); err == nil {
			t.Fatal("a response was not lost")
		}
	}
	r, err := f.client.ReceiveMessage(t.Context(), &v2.ReceiveMessageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Recv(); err != nil {
		t.Errorf("a receive, which is not lost, returned %v", err)
	}
	cancel()
	f.lose.Store(false)
	f.mustSend() // of the same connection
}

func TestDelays(t *testing.T) {
	f := start(t)
	f.mustSend()
	const delay = 150 * time.Millisecond
	f.relay.Set(fault{Delay: delay})
	began := time.Now()
	f.mustSend()
	if took := time.Since(began); took < delay {
		t.Errorf("a response that is %v late came after %v", delay, took)
	}
	f.relay.Set(fault{})
	f.mustSend()
}

// More requests are throttled than the windows of a connection hold, so a relay that returns no
// window would block the client.
func TestThrottles(t *testing.T) {
	f := start(t)
	f.mustSend()
	var on atomic.Bool
	on.Store(true)
	f.relay.Set(fault{Throttle: on.Load})
	for range 500 { // of 1 KiB
		if id, code, err := f.send(relayPatience); id != "" || code != v2.Code_TOO_MANY_REQUESTS || err != nil {
			t.Fatalf("a throttled send returned %q, %v, %v", id, code, err)
		}
	}
	if n := f.proxy.sends.Load(); n != 1 {
		t.Errorf("the server received %d sends, want the first alone", n)
	}
	on.Store(false)
	f.mustSend()
}

func TestBlackHole(t *testing.T) {
	f := start(t)
	f.mustSend()
	f.relay.Set(fault{Silent: true})
	if _, _, err := f.send(100 * time.Millisecond); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a send into a black hole returned %v", err)
	}
	if n := f.proxy.sends.Load(); n != 1 {
		t.Errorf("the server received %d sends, want the first alone", n)
	}
	f.relay.Set(fault{})
	f.mustSend() // on the same connection: its bytes were held
}
