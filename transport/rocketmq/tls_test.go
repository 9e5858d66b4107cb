package rocketmq

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// selfSigned returns a certificate for 127.0.0.1 and a pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	return certificate(t, net.IPv4(127, 0, 0, 1), time.Now().Add(100*365*24*time.Hour))
}

// certificate returns a certificate for an address that ends at a time, and a pool that trusts it.
func certificate(t *testing.T, ip net.IP, until time.Time) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: until,
		IPAddresses: []net.IP{ip}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// Mistakes in Options.TLS are permanent, and the error names the remedy.
func TestTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	tlsServer := grpc.Creds(credentials.NewServerTLSFromCert(&cert))
	mutual := grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert}))
	for name, tt := range map[string]struct {
		config *tls.Config
		server []grpc.ServerOption
		fault  string // in the error; empty: it is sent
	}{
		"trusted":        {&tls.Config{RootCAs: pool}, []grpc.ServerOption{tlsServer}, ""},
		"not checked":    {&tls.Config{InsecureSkipVerify: true}, []grpc.ServerOption{tlsServer}, ""},
		"plain":          {nil, nil, ""},
		"not trusted":    {&tls.Config{RootCAs: x509.NewCertPool()}, []grpc.ServerOption{tlsServer}, "RootCAs"},
		"wrong name":     {&tls.Config{RootCAs: pool, ServerName: "other.test"}, []grpc.ServerOption{tlsServer}, "ServerName"},
		"no certificate": {&tls.Config{RootCAs: pool}, []grpc.ServerOption{mutual}, "certificate and the TLS versions"},
		"plain to TLS":   {nil, []grpc.ServerOption{tlsServer}, "expects TLS"},
		"TLS to plain":   {&tls.Config{RootCAs: pool}, nil, "plain text"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				s.stop()
				l := bufconn.Listen(1 << 20)
				s.grpc = grpc.NewServer(tt.server...)
				rmqpb.RegisterMessagingServiceServer(s.grpc, s)
				n.ports[testAddr] = l
				go s.grpc.Serve(l)
				c := newClient(t, n, func(o *Options) { o.TLS = tt.config })
				ctxs := []context.Context{t.Context(), awaiting(t, time.Hour)}
				if name == "no certificate" {
					ctxs = ctxs[1:] // the server may hang up before its reason is read
				}
				for _, ctx := range ctxs {
					begin := time.Now()
					_, err := sendOne(ctx, c, message("x"))
					if tt.fault == "" {
						if err != nil {
							t.Errorf("%v", err)
						}
						continue
					}
					if err == nil || tidegate.Classify(err) != tidegate.ClassPermanent || err.Code != tidegate.CodeIllegalAccessPoint || err.MaybeStored ||
						!strings.Contains(err.Error(), tt.fault) || !strings.Contains(err.Error(), "Options.TLS") {
						t.Errorf("%v, want a permanent error that names Options.TLS and %q", err, tt.fault)
					}
					if took := time.Since(begin); took > 10*time.Second {
						t.Errorf("after %v", took)
					}
				}
			})
		})
	}
}

// serveTLS starts the server with a certificate, in place of its listener.
func (s *server) serveTLS(cert tls.Certificate) {
	s.stop()
	l := bufconn.Listen(1 << 20)
	s.grpc = grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&cert)), grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream))
	rmqpb.RegisterMessagingServiceServer(s.grpc, s)
	s.net.mu.Lock()
	s.net.ports[s.addr] = l
	s.net.mu.Unlock()
	go s.grpc.Serve(l)
}

// A certificate that has expired, or has another name or issuer, is an outage at an address that
// has worked: attempts are repeated like those to a port that refuses connections, and the first
// one after the renewal succeeds as soon. At an address that has never worked it is an error at
// once.
func TestCertificateOfAWorkingAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, long := net.IPv4(127, 0, 0, 1), time.Now().Add(100*365*24*time.Hour)
		good, _ := certificate(t, here, long)
		expired, _ := certificate(t, here, time.Now().Add(time.Minute))
		other, _ := certificate(t, net.IPv4(127, 0, 0, 9), long)
		foreign, _ := certificate(t, here, long)
		<-time.After(2 * time.Minute) // the second one has expired
		for name, tt := range map[string]struct {
			cert    tls.Certificate
			trusted [][]byte // beside the good one
			text    string
		}{
			"expired":       {expired, expired.Certificate, "expired"},
			"another name":  {other, other.Certificate, "127.0.0.9"},
			"another owner": {foreign, nil, "unknown authority"},
		} {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			s.serveTLS(tt.cert)
			roots := x509.NewCertPool()
			for _, p := range append([][]byte{good.Certificate[0]}, tt.trusted...) {
				c, err := x509.ParseCertificate(p)
				if err != nil {
					t.Fatal(err)
				}
				roots.AddCert(c)
			}
			client := func() *Client { return newClient(t, n, func(o *Options) { o.TLS = &tls.Config{RootCAs: roots} }) }
			fresh := client()
			if _, err := sendOne(awaiting(t, time.Hour), fresh, message("x")); err == nil || tidegate.Classify(err) != tidegate.ClassPermanent || err.NotConnected {
				t.Errorf("%s, at an address that never worked: %v", name, err)
			}
			fresh.Close()
			s.serveTLS(good)
			c := client()
			if _, err := sendOne(t.Context(), c, message("x")); err != nil {
				t.Fatal(err)
			}
			s.serveTLS(tt.cert)
			synctest.Wait() // the client has noticed the end of the connection
			_, err := sendOne(awaiting(t, 4*time.Minute), c, message("x"))
			if err == nil || !err.NotConnected || err.MaybeStored || err.Code != 0 || tidegate.Classify(err) != tidegate.ClassTransient || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s, while waiting: %v, want an outage whose text has %q", name, err, tt.text)
			}
			_, err = sendOne(t.Context(), c, message("x"))
			if err == nil || !err.NotConnected || err.MaybeStored || tidegate.Classify(err) != tidegate.ClassTransient || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v, want an outage whose text has %q", name, err, tt.text)
			}
			s.serveTLS(good)
			back := time.Now()
			if _, err := sendOne(awaiting(t, time.Hour), c, message("x")); err != nil || time.Since(back) > 2500*time.Millisecond {
				t.Errorf("%s, after the renewal: %v after %v", name, err, time.Since(back))
			}
			c.Close()
			s.stop()
		}
	})
}

// Rejected credentials are an outage if the server carried out the same operation with them before.
func TestLapsedCredentials(t *testing.T) {
	rejection := &rmqpb.Status{Code: rmqpb.Code_UNAUTHORIZED, Message: "the signature is wrong"}
	for name, reject := range map[string]func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error){
		"by status": func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return &rmqpb.SendMessageResponse{Status: rejection}, nil
		},
		"by entry": func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return &rmqpb.SendMessageResponse{Status: rejection, Entries: []*rmqpb.SendResultEntry{{Status: rejection}}}, nil
		},
		"by gRPC": func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return nil, status.Error(codes.Unauthenticated, "the signature is wrong")
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			accept := s.send
			c := newClient(t, n, nil)
			try := func(send func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error), lapsed bool, class tidegate.Class) {
				t.Helper()
				s.send = send
				_, err := sendOne(t.Context(), c, message("x"))
				if tidegate.Classify(orNil(err)) != class || err != nil && (err.Lapsed != lapsed || !errors.Is(err, tidegate.ErrUnauthorized) || errors.Is(err, tidegate.ErrUnavailable) != lapsed || err.MaybeStored) {
					t.Errorf("%s: %#v, want %v, lapsed %t", name, err, class, lapsed)
				}
			}
			try(reject, false, tidegate.ClassPermanent) // the route was accepted, a send was not
			try(accept, false, tidegate.ClassOK)
			try(reject, true, tidegate.ClassTransient)
			try(accept, false, tidegate.ClassOK)
		})
	}
}

// orNil returns a nil error for a nil pointer.
func orNil(e *tidegate.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// A resetting connection fails the first write, as TCP does when a TLS port has closed the
// connection before the client read anything.
type resetting struct{ net.Conn }

func (resetting) Write([]byte) (int, error) {
	return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.ECONNRESET)}
}

// A TLS port that resets a plain-text connection before anything was read is recognized too.
func TestTLSFaultOfAFailedWrite(t *testing.T) {
	cert, _ := selfSigned(t)
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		l := bufconn.Listen(1 << 20)
		n.ports[testAddr] = l
		g := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
		go g.Serve(l)
		defer g.Stop()
		dials := 0
		c := newClient(t, n, func(o *Options) {
			o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := n.dial(ctx, addr)
				if dials++; dials == 1 && err == nil {
					conn = resetting{conn}
				}
				return conn, err
			}
		})
		_, err := sendOne(t.Context(), c, message("x"))
		if err == nil || err.Code != tidegate.CodeIllegalAccessPoint || !strings.Contains(err.Error(), "Options.TLS") {
			t.Errorf("%v, want an error that names Options.TLS", err)
		}
	})
}

// A server that hangs up on plain text is not reported as a TLS server, and the error ends once the
// server works.
func TestNoTLSFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hangUp := bufconn.Listen(1 << 10)
		go func() {
			for {
				conn, err := hangUp.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
		defer hangUp.Close()
		n.ports[testAddr] = hangUp
		c := newClient(t, n, nil)
		if _, err := sendOne(t.Context(), c, message("x")); !errors.Is(err, tidegate.ErrUnavailable) || tidegate.Classify(err) != tidegate.ClassTransient {
			t.Errorf("%v of a server that hangs up, want unavailable", err)
		}
		newServer(t, n, testAddr)
		if _, err := sendOne(awaiting(t, time.Minute), c, message("x")); err != nil {
			t.Errorf("%v of the server in its place", err)
		}
	})
}

// The client uses the first of several addresses that it can reach.
func TestSeveralAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, otherAddr)
		const both = testAddr + ";" + otherAddr
		s.route = func() *rmqpb.QueryRouteResponse {
			return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(both, "b", 1)}
		}
		c, err := New(both, Options{Dialer: n.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if r, err := sendOne(t.Context(), c, message("x")); err != nil || r.Endpoint != both {
			t.Errorf("%+v, %v", r, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.endpoints) != 1 {
			t.Errorf("%d connections, want one: the route names the endpoint of New", len(c.endpoints))
		}
	})
}
