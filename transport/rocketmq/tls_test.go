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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// selfSigned returns a certificate for 127.0.0.1 and a pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(100 * 365 * 24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
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
