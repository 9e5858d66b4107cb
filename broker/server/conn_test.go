package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// listen serves on a port of the loopback, and returns its address.
func listen(t *testing.T, o server.Options) (*env, string) {
	t.Helper()
	e := start(t, o)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
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
	cert, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer cert.Close()
	leaf := cert.ConnectionState().PeerCertificates[0]
	if err := leaf.VerifyHostname("127.0.0.1"); err != nil || cert.ConnectionState().NegotiatedProtocol != "h2" {
		t.Errorf("%v, ALPN %q", err, cert.ConnectionState().NegotiatedProtocol)
	}
}

// Garbage, silence and half a greeting end at the deadline at the latest, delay no other client,
// and leave nothing behind.
func TestOddConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{HandshakeTimeout: 5 * time.Second})
		lis := bufconn.Listen(1 << 16)
		go e.s.Serve(lis)
		began := time.Now()
		var conns []net.Conn
		for _, greeting := range []string{
			"", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16", "\x16\x03\x01\x02\x00",
			"\x16\x03\x01\x00\x05hello", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x00\x01\x02\x03", strings.Repeat("\xff", 1000),
		} {
			c, err := lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
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
		if n := e.s.Parts().Silent; n != 0 {
			t.Errorf("%d connections are still pending", n)
		}
	})
}

// A silent connection does not hold up the end either.
func TestCloseWithSilentConnections(t *testing.T) {
	for _, graceful := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, server.Options{})
			lis := bufconn.Listen(1 << 16)
			go e.s.Serve(lis)
			for _, greeting := range []string{"", "PRI", "\x16"} {
				c, err := lis.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				io.WriteString(c, greeting)
			}
			synctest.Wait()
			began := time.Now()
			if graceful {
				if err := e.s.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			} else {
				e.s.Close()
			}
			if d := time.Since(began); d != 0 {
				t.Errorf("the end took %v", d)
			}
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
		if err != nil {
			t.Fatal(err)
		}
		v := rmqpb.NewMessagingServiceClient(conn)
		id := as(t.Context(), fmt.Sprint("v", i))
		st, err := v.Telemetry(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(command(consumer(rmqpb.ClientType_SIMPLE_CONSUMER))); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Recv(); err != nil {
			t.Fatal(err)
		}
		s, err := v.ReceiveMessage(id, receiveRequest("normal", invisible(200*time.Millisecond)))
		if err != nil {
			t.Fatal(err)
		}
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
		fs, err := frames(c.ReceiveMessage(as(t.Context(), "stayer"), receiveRequest("normal")))
		if err != nil {
			t.Fatal(err)
		}
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
	if len(got) != n {
		t.Errorf("%d messages; want %d", len(got), n)
	}
	group, err := e.b.Group("g")
	if err != nil || group.Topics[0].Backlog != (status.Backlog{}) {
		t.Errorf("backlog %+v, %v; want none", group.Topics, err)
	}
	synctest.Wait()
	if now, stacks := goroutines(); now > before {
		t.Errorf("%d goroutines before, %d after:\n%s", before, now, stacks)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	b, err := broker.Open(broker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = server.New(b, server.Options{
		Advertise: "nowhere", HTTPHosts: []string{"ok", "no:1"}, HandshakeTimeout: -1, MaxSilentConnections: -7, MinLongPolling: -2, MaxLongPolling: -3, MaxReceiveSize: -4,
		ProducerMaxAttempts: -5, TLS: &tls.Config{},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range []string{`Advertise is "nowhere"`, `HTTPHosts has "no:1"`, "HandshakeTimeout is -1ns", "MinLongPolling is -2ns", "MaxLongPolling is -3ns", "MaxReceiveSize is -4", "ProducerMaxAttempts is -5", "MaxSilentConnections is -7", "TLS has no certificate"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not contain %q", err, w)
		}
	}
	if _, err := server.New(b, server.Options{MinLongPolling: time.Minute}); err == nil || !strings.Contains(err.Error(), "MaxLongPolling") {
		t.Errorf("MinLongPolling above the maximum: %v", err)
	}
	if _, err := server.New(nil, server.Options{}); err == nil {
		t.Error("a nil broker was accepted")
	}
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
