package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// listen serves on a port of the loopback, and returns its address.
func listen(t *testing.T, o server.Options) (*env, string) {
	t.Helper()
	e := start(t, o)
	lis := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- e.s.Serve(lis) }()
	t.Cleanup(func() {
		e.s.Close()
		if err := <-served; err != nil && !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("Serve on %s: %v", lis.Addr(), err)
		}
	})
	return e, lis.Addr().String()
}

func dial(t *testing.T, addr string, creds credentials.TransportCredentials) rmqpb.MessagingServiceClient {
	t.Helper()
	conn := assert.Value(grpc.NewClient(addr, grpc.WithTransportCredentials(creds)))(t)
	t.Cleanup(func() { conn.Close() })
	return rmqpb.NewMessagingServiceClient(conn)
}

// TLS and plain text come to the same port, and the route leads back to it.
func TestTLSAndPlainTextOnOnePort(t *testing.T) {
	_, addr := listen(t, server.Options{})
	for name, creds := range map[string]credentials.TransportCredentials{
		"plain": insecure.NewCredentials(),
		"TLS":   credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}),
	} {
		c := dial(t, addr, creds)
		r, err := c.QueryRoute(as(t.Context(), "client"), &rmqpb.QueryRouteRequest{Topic: res("normal")})
		if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Errorf("%s: %v, %v", name, r, err)
			continue
		}
		at := r.GetMessageQueues()[0].GetBroker().GetEndpoints()
		if got := fmt.Sprintf("%s:%d", at.GetAddresses()[0].GetHost(), at.GetAddresses()[0].GetPort()); got != addr || at.GetScheme() != rmqpb.AddressScheme_IPv4 {
			t.Errorf("%s: the route leads to %v; want %s", name, at, addr)
		}
	}
	// The certificate is for this machine.
	cert := assert.Value(tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}))(t)
	defer cert.Close()
	leaf := cert.ConnectionState().PeerCertificates[0]
	if err := leaf.VerifyHostname("127.0.0.1"); err != nil || cert.ConnectionState().NegotiatedProtocol != "h2" {
		t.Errorf("%v, ALPN %q", err, cert.ConnectionState().NegotiatedProtocol)
	}
}

// Garbage, silence and half a greeting end at the deadline at the latest, delay no other client,
// and leave nothing behind.
func TestOddConnections(t *testing.T) {
	withServer(t, server.Options{HandshakeTimeout: 5 * time.Second}, func(t *testing.T, e *env) {
		lis := bufconn.Listen(1 << 16)
		go e.s.Serve(lis)
		began := time.Now()
		var conns []net.Conn
		for _, greeting := range []string{
			"", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16", "\x16\x03\x01\x02\x00",
			"\x16\x03\x01\x00\x05hello", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x00\x01\x02\x03", strings.Repeat("\xff", 1000),
		} {
			c := assert.Value(lis.DialContext(t.Context()))(t)
			defer c.Close()
			if _, err := io.WriteString(c, greeting); err != nil && err != io.ErrClosedPipe {
				t.Errorf("%q: %v", greeting, err)
			}
			conns = append(conns, c)
		}
		synctest.Wait()
		e.send(msg("normal", "1")) // others are served meanwhile
		for i, c := range conns {
			// With any response of the server, the connection ends.
			if _, err := io.Copy(io.Discard, c); err != nil && err != io.ErrClosedPipe {
				t.Errorf("connection %d: %v", i, err)
			}
		}
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("the last one ended after %v; want 5s", d)
		}
		assert.Equal(t, "connections are still pending", e.s.Parts().Silent, 0)
	})
}

// A silent connection does not hold up the end either.
func TestCloseWithSilentConnections(t *testing.T) {
	for _, graceful := range []bool{true, false} {
		withServer(t, server.Options{}, func(t *testing.T, e *env) {
			lis := bufconn.Listen(1 << 16)
			go e.s.Serve(lis)
			for _, greeting := range []string{"", "PRI", "\x16"} {
				c := assert.Value(lis.DialContext(t.Context()))(t)
				defer c.Close()
				io.WriteString(c, greeting)
			}
			synctest.Wait()
			began := time.Now()
			if graceful {
				assert.NoError(t, e.s.Shutdown(t.Context()))
			} else {
				e.s.Close()
			}
			assert.Equal(t, "the end took", time.Since(began), 0)
		})
	}
}

// Clients that vanish in the middle of everything leave no goroutine, and other clients get their
// messages when the invisible time is over.
func TestClientsThatVanish(t *testing.T) {
	synctest.Test(t, clientsThatVanish)
}

func clientsThatVanish(t *testing.T) {
	e := start(t, server.Options{})
	c := e.MessagingServiceClient
	const n = 80
	big := make([]byte, 64<<10)
	for i := range n {
		r, err := c.SendMessage(as(t.Context(), "sender"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", fmt.Sprint(i), body(big))}})
		if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Fatal(r, err)
		}
	}
	synctest.Wait()
	// runtime.NumGoroutine counts a goroutine for a while after its end.
	goroutines := func() (n int, stacks []byte) {
		stacks = make([]byte, 4<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return bytes.Count(stacks, []byte(", synctest bubble ")), stacks
	}
	before, _ := goroutines()
	for i := range 30 {
		// A raw connection that can be cut at any moment.
		var raw net.Conn
		conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				if raw != nil {
					return nil, errors.New("once only")
				}
				var err error
				raw, err = e.lis.DialContext(ctx)
				return raw, err
			}))
		assert.Must(t, err)
		v := rmqpb.NewMessagingServiceClient(conn)
		id := as(t.Context(), fmt.Sprint("v", i))
		st, err := v.Telemetry(id)
		assert.Must(t, err)
		assert.Must(t, st.Send(command(consumer(rmqpb.ClientType_SIMPLE_CONSUMER))))
		assert.Must(t, assert.Err(st.Recv()))
		s, err := v.ReceiveMessage(id, receiveRequest("normal", invisible(200*time.Millisecond)))
		assert.Must(t, err)
		for range i % 5 {
			if _, err := s.Recv(); err != nil {
				break
			}
		}
		raw.Close()
		conn.Close()
	}
	// The remaining clients get all messages.
	got := map[string]bool{}
	deadline := time.Now().Add(20 * time.Second)
	for len(got) < n && time.Now().Before(deadline) {
		fs := assert.Value(frames(c.ReceiveMessage(as(t.Context(), "stayer"), receiveRequest("normal"))))(t)
		var a rmqpb.AckMessageRequest
		for _, f := range fs {
			if m := f.GetMessage(); m != nil {
				got[m.GetSystemProperties().GetMessageId()] = true
				a.Entries = append(a.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()})
			}
		}
		if a.Group, a.Topic = res("g"), res("normal"); len(a.Entries) > 0 {
			if r, err := c.AckMessage(as(t.Context(), "stayer"), &a); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatal(r, err)
			}
		}
	}
	assert.Equal(t, "messages", len(got), n)
	group, err := e.b.Group("g")
	assert.That(t, err == nil && group.Topics[0].Backlog == (status.Backlog{}), "backlog %+v, %v; want none", group.Topics, err)
	synctest.Wait()
	if now, stacks := goroutines(); now > before {
		t.Errorf("%d goroutines before, %d after:\n%s", before, now, stacks)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	b, err := broker.Open(broker.Options{})
	assert.Must(t, err)
	defer b.Close()
	_, err = server.New(b, server.Options{
		Advertise: "nowhere", HTTPHosts: []string{"ok", "no:1"}, HandshakeTimeout: -1, MaxSilentConnections: -7, MinLongPolling: -2, MaxLongPolling: -3, MaxReceiveSize: -4,
		ProducerMaxAttempts: -5, TLS: &tls.Config{},
	})
	assert.MustThat(t, err != nil, "no error")
	for _, w := range []string{`Advertise is "nowhere"`, `HTTPHosts has "no:1"`, "HandshakeTimeout is -1ns", "MinLongPolling is -2ns", "MaxLongPolling is -3ns", "MaxReceiveSize is -4", "ProducerMaxAttempts is -5", "MaxSilentConnections is -7", "TLS has no certificate"} {
		assert.That(t, strings.Contains(err.Error(), w), "error %q does not contain %q", err, w)
	}
	if _, err := server.New(b, server.Options{MinLongPolling: time.Minute}); err == nil || !strings.Contains(err.Error(), "MaxLongPolling") {
		t.Errorf("MinLongPolling above the maximum: %v", err)
	}
	assert.That(t, assert.Err(server.New(nil, server.Options{})) != nil, "a nil broker was accepted")
}

// Routes have the address of the options.
func TestAdvertise(t *testing.T) {
	e := start(t, server.Options{Advertise: "broker.example:9000"})
	r, err := e.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: res("normal")})
	if err != nil || len(r.GetMessageQueues()) == 0 {
		t.Fatal(r, err)
	}
	if at := r.GetMessageQueues()[0].GetBroker().GetEndpoints(); at.GetAddresses()[0].GetHost() != "broker.example" || at.GetScheme() != rmqpb.AddressScheme_DOMAIN_NAME {
		t.Errorf("advertised %v", at)
	}
}

// A connection over gRPC makes room for a new one, except while a request of it is under way, and
// if its client is authenticated: with the rules that hold now.
func TestIdleGRPCConnectionsMakeRoom(t *testing.T) {
	for _, c := range []struct {
		name  string
		keys  bool
		first func(e *env, c rmqpb.MessagingServiceClient)
		stays bool
	}{
		{name: "only a hello", first: func(*env, rmqpb.MessagingServiceClient) {}},
		{name: "had a request with a response", first: func(e *env, c rmqpb.MessagingServiceClient) { queried(e.ctx(), e, c) }},
		{name: "has a stream", stays: true, first: func(e *env, c rmqpb.MessagingServiceClient) { converses(e.ctx(), e, c) }},
		{name: "waits for a message", stays: true, first: func(e *env, c rmqpb.MessagingServiceClient) {
			assert.Must(e.t, assert.Err(c.ReceiveMessage(e.ctx(), receiveRequest("normal"))))
		}},
		{name: "is authenticated", keys: true, stays: true, first: func(e *env, c rmqpb.MessagingServiceClient) {
			queried(signed(e.t.Context(), "producer"), e, c)
		}},
		{name: "was refused", keys: true, first: func(e *env, c rmqpb.MessagingServiceClient) {
			assert.Must(e.t, assert.Err(c.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: res("normal")})))
		}},
		{name: "was authenticated before other rules held", keys: true, first: func(e *env, c rmqpb.MessagingServiceClient) {
			queried(signed(e.t.Context(), "producer"), e, c)
			assert.Must(e.t, e.s.SetAccess(server.AccessConfig{Keys: []server.Key{{Name: "other", Secrets: []server.Secret{server.NewSecret("x")}}}}))
			if r, err := c.QueryRoute(signed(e.t.Context(), "producer"), &rmqpb.QueryRouteRequest{Topic: res("normal")}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_UNAUTHORIZED {
				e.t.Fatalf("with a key that holds no more: %v, %v", r, err)
			}
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := server.Options{MaxLongPolling: 20 * time.Second}
			if c.keys {
				o.Access = someAccess()
			}
			e := start(t, o)
			pipe := bufconn.Listen(1 << 16)
			go e.s.Serve(admission.LimitConns(pipe, 1, func(bool) {}))
			dial := func(lost chan<- struct{}) rmqpb.MessagingServiceClient {
				conn, err := grpc.NewClient("passthrough:///limited", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						raw, err := pipe.DialContext(ctx)
						return &watched{raw, lost}, err
					}))
				assert.Must(t, err)
				t.Cleanup(func() { conn.Close() })
				conn.Connect()
				return rmqpb.NewMessagingServiceClient(conn)
			}
			lost := make(chan struct{}, 10)
			first := dial(lost)
			synctest.Wait()
			c.first(e, first)
			synctest.Wait()
			dial(nil)
			time.Sleep(5 * time.Second)
			if stayed := len(lost) == 0; stayed != c.stays {
				t.Errorf("%s: stayed %t, want %t", c.name, stayed, c.stays)
			}
		})
	}
}

// A watched connection reports its end.
type watched struct {
	net.Conn
	lost chan<- struct{}
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil && w.lost != nil {
		w.lost <- struct{}{}
	}
	return n, err
}

func queried(ctx context.Context, e *env, c rmqpb.MessagingServiceClient) {
	e.t.Helper()
	if r, err := c.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
		e.t.Fatal(r, err)
	}
}

func converses(ctx context.Context, e *env, c rmqpb.MessagingServiceClient) {
	e.t.Helper()
	s, err := c.Telemetry(ctx)
	if err == nil {
		err = s.Send(command(consumer(rmqpb.ClientType_SIMPLE_CONSUMER)))
	}
	if err == nil {
		_, err = s.Recv()
	}
	assert.Must(e.t, err)
}

// A throttled receive has the time to wait in the trailer.
func TestThrottledReceivePushesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{poll: func(context.Context) error {
			return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: 700 * time.Millisecond, Message: "enough"}
		}}
		e := start(t, server.Options{}, f)
		s, err := e.ReceiveMessage(e.ctx(), receiveRequest("normal"))
		fs, err := frames(s, err)
		assert.MustThat(t, err == nil && len(fs) == 2, "%v, %v", fs, err)
		refused(t, fs[0].GetStatus(), tidegate.CodeTooManyRequests)
		if got := s.Trailer().Get("grpc-retry-pushback-ms"); len(got) != 1 || got[0] != "700" {
			t.Errorf("push-back %q, want 700", got)
		}
	})
}

// Two times in a request, of which a proxy may have looked at the other one, are no credentials,
// on either wire.
func TestTwoTimesAreRejected(t *testing.T) {
	x := startWeb(t, server.Options{Access: someAccess()})
	once := signed(t.Context(), "producer")
	out, _ := metadata.FromOutgoingContext(once)
	twice := metadata.AppendToOutgoingContext(once, wire.HeaderDateTime, out.Get(wire.HeaderDateTime)[0])
	for _, c := range []struct {
		times int
		ctx   context.Context
		want  tidegate.Code
	}{{1, once, protocol.CodeOK}, {2, twice, tidegate.CodeUnauthorized}} {
		ctx := c.ctx
		r, err := x.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")})
		if err != nil || tidegate.Code(r.GetStatus().GetCode()) != c.want {
			t.Errorf("%d over gRPC: %v, %v; want %d", c.times, r, err, c.want)
		}
		if c.times == 2 {
			refused(t, r.GetStatus(), c.want, "malformed")
		}
		out, _ := metadata.FromOutgoingContext(ctx)
		req := x.request(t.Context(), "POST", "/v1/topics/normal/messages", strings.NewReader(`{"body":"eA=="}`), "Content-Type", server.TypeJSON,
			wire.HeaderAuthorization, out.Get(wire.HeaderAuthorization)[0])
		for _, at := range out.Get(wire.HeaderDateTime) {
			req.Header.Add(wire.HeaderDateTime, at)
		}
		resp, err := x.client.Do(req)
		assert.Must(t, err)
		resp.Body.Close()
		if ok := resp.StatusCode == http.StatusOK; ok != (c.times == 1) || !ok && resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%d over HTTP: %s", c.times, resp.Status)
		}
	}
}

// A ping detects a client that vanished without closing its connection. The server sends it after a
// minute, and the client has 20 s to respond. A client that responds stays.
func TestKeepaliveFindsLostClients(t *testing.T) {
	for name, answers := range map[string]bool{"lost": false, "there": true} {
		withServer(t, server.Options{}, func(t *testing.T, e *env) {
			c := assert.Value(e.lis.DialContext(t.Context()))(t)
			defer c.Close()
			began, lost := time.Now(), make(chan time.Duration, 1)
			go func() {
				// The preface and empty settings.
				io.WriteString(c, http2.ClientPreface)
				fr := http2.NewFramer(c, c)
				fr.WriteSettings()
				for {
					f, err := fr.ReadFrame()
					if err != nil {
						lost <- time.Since(began)
						return
					}
					if p, ok := f.(*http2.PingFrame); ok && answers && !p.IsAck() {
						fr.WritePing(true, p.Data)
					}
				}
			}()
			time.Sleep(90 * time.Second)
			select {
			case after := <-lost:
				assert.That(t, !answers && after == 80*time.Second, "%s: the connection was closed after %v", name, after)
			default:
				assert.That(t, answers, "%s: the connection is open", name)
			}
		})
	}
}
