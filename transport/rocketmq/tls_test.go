package rocketmq_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
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
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// selfSigned returns a certificate for 127.0.0.1 and a pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	return certificate(t, net.IPv4(127, 0, 0, 1), time.Now().Add(100*365*24*time.Hour))
}

// certificate returns a certificate for an address that ends at a time, and a pool that trusts it.
func certificate(t *testing.T, ip net.IP, until time.Time) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: until,
		IPAddresses: []net.IP{ip}, IsCA: true, BasicConstraintsValid: true,
	}
	der := assert.Value(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	cert := assert.Value(x509.ParseCertificate(der))(t)
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
		assert.Bubble(t, name, func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			s.stop()
			l := bufconn.Listen(1 << 20)
			s.grpc = grpc.NewServer(tt.server...)
			rmqpb.RegisterMessagingServiceServer(s.grpc, s)
			s.net.ports[testAddr] = l
			go s.grpc.Serve(l)
			c := newClient(t, s.net, func(o *rocketmq.Options) {
				o.TLS = tt.config
				o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
					conn, err := s.net.dial(ctx, addr)
					return likeTCP{conn}, err
				}
			})
			for _, ctx := range []context.Context{t.Context(), awaiting(t, time.Hour)} {
				begin := time.Now()
				_, err := sendOne(ctx, c, message("x"))
				if tt.fault == "" {
					assert.That(t, err == nil, "%v", err)
					continue
				}
				if err == nil || tidegate.Classify(err) != tidegate.ClassPermanent || err.Code != tidegate.CodeIllegalAccessPoint || err.MaybeStored ||
					!strings.Contains(err.Error(), tt.fault) || !strings.Contains(err.Error(), "Options.TLS") {
					t.Errorf("%v, want a permanent error that names Options.TLS and %q", err, tt.fault)
				}
				took := time.Since(begin)
				assert.That(t, took <= 10*time.Second, "after %v", took)
			}
		})
	}
}

// serveTLS starts the server with a certificate, in place of its listener.
func (s *fakeServer) serveTLS(cert tls.Certificate) {
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
				c := assert.Value(x509.ParseCertificate(p))(t)
				roots.AddCert(c)
			}
			client := func() *rocketmq.Client {
				return newClient(t, n, func(o *rocketmq.Options) { o.TLS = &tls.Config{RootCAs: roots} })
			}
			fresh := client()
			if _, err := sendOne(awaiting(t, time.Hour), fresh, message("x")); err == nil || tidegate.Classify(err) != tidegate.ClassPermanent || err.NotConnected {
				t.Errorf("%s, at an address that never worked: %v", name, err)
			}
			fresh.Close()
			s.serveTLS(good)
			c := client()
			sent(t, c, message("x"))
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
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			accept := s.send
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

// A likeTCP connection takes writes after the server's close, as TCP does until the reset arrives:
// a read then gets what the server wrote last, such as the reason.
type likeTCP struct{ net.Conn }

func (c likeTCP) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		return len(p), nil
	}
	return n, err
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
		c := newClient(t, n, func(o *rocketmq.Options) {
			o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := n.dial(ctx, addr)
				if dials++; dials == 1 && err == nil {
					conn = resetting{conn}
				}
				return conn, err
			}
		})
		_, err := sendOne(t.Context(), c, message("x"))
		assert.That(t, err != nil && err.Code == tidegate.CodeIllegalAccessPoint && strings.Contains(err.Error(), "Options.TLS"),
			"%v, want an error that names Options.TLS", err)
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
		_, err := sendOne(awaiting(t, time.Minute), c, message("x"))
		assert.That(t, err == nil, "%v of the server in its place", err)
	})
}

// listen answers at the address of the tests with another server until stop, at the latest until
// the test ends.
func (n *network) listen(t *testing.T, serve func(net.Listener)) (stop func()) {
	l := bufconn.Listen(1 << 16)
	n.mu.Lock()
	n.ports[testAddr] = l
	n.mu.Unlock()
	var done sync.WaitGroup
	done.Go(func() { serve(l) })
	stop = func() { l.Close(); done.Wait() }
	t.Cleanup(stop)
	return stop
}

// web serves every request with a status, without HTTP/2 or, with a certificate and over TLS, with
// it.
func web(status int, config *tls.Config) func(net.Listener) {
	return func(l net.Listener) {
		s := &http.Server{TLSConfig: config.Clone(), ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "a page", status)
		})}
		s.Protocols = new(http.Protocols)
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetHTTP2(config != nil && len(config.NextProtos) == 0)
		if config != nil {
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
		_ = s.Close()
	}
}

// banner answers each connection with a text, as it connects.
func banner(text string) func(net.Listener) {
	return func(l net.Listener) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 8))
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		}
	}
}

// An address whose server speaks another protocol fails at once, permanently, with the remedy. A
// page that a gateway sends while its server is away is an outage.
func TestOtherProtocol(t *testing.T) {
	cert, pool := selfSigned(t)
	secure := &tls.Config{Certificates: []tls.Certificate{cert}}
	old := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}
	trust := &tls.Config{RootCAs: pool}
	for name, tt := range map[string]struct {
		serve  func(net.Listener)
		config *tls.Config // of the client
		says   string      // empty: an outage
	}{
		"HTTP/1":                    {web(404, nil), nil, "but HTTP/1: it is a port for HTTP"},
		"HTTP/1 over TLS":           {web(404, old), trust, "but TLS without HTTP/2"},
		"a page over HTTP/2":        {web(404, secure), trust, "but HTTP (status 404)"},
		"a login page over HTTP/2":  {web(200, secure), trust, "but HTTP (status 200)"},
		"AMQP":                      {banner("AMQP\x03\x01\x00\x00"), nil, "but AMQP"},
		"a gateway without server":  {banner("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"), nil, ""},
		"a gateway that overflows":  {web(503, secure), trust, ""},
		"a gateway that is limited": {web(429, secure), trust, ""},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			n := newNetwork()
			n.listen(t, tt.serve)
			c := newClient(t, n, func(o *rocketmq.Options) { o.TLS = tt.config })
			for _, ctx := range []context.Context{t.Context(), awaiting(t, 30*time.Second)} {
				begin := time.Now()
				_, err := sendOne(ctx, c, message("x"))
				permanent := err != nil && err.Code == tidegate.CodeIllegalAccessPoint && tidegate.Classify(err) == tidegate.ClassPermanent
				switch {
				case tt.says == "" && (permanent || err == nil):
					t.Errorf("%v, want an outage", err)
				case tt.says != "" && (!permanent || err.MaybeStored || !strings.Contains(err.Error(), tt.says) || time.Since(begin) > 3*time.Second):
					t.Errorf("%v after %v, want a permanent error at once with %q", err, time.Since(begin), tt.says)
				}
			}
		})
	}
}

// One page of a web server at an address that has worked is an outage, which ends with the return
// of the server.
func TestOtherProtocolAfterWork(t *testing.T) {
	cert, pool := selfSigned(t)
	for name, tt := range map[string]struct {
		serve func(net.Listener)
		tls   bool
	}{
		"HTTP/1":             {web(404, nil), false},
		"a page over HTTP/2": {web(404, &tls.Config{Certificates: []tls.Certificate{cert}}), true},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			c := newClient(t, n, func(o *rocketmq.Options) {
				if tt.tls {
					o.TLS = &tls.Config{RootCAs: pool}
				}
			})
			start := func() {
				if tt.tls {
					s.serveTLS(cert)
				} else {
					s.start()
				}
			}
			if tt.tls {
				start()
			}
			sent(t, c, message("x"))
			s.stop()
			stop := n.listen(t, tt.serve)
			for range 3 {
				if _, err := sendOne(t.Context(), c, message("x")); err == nil || tidegate.Classify(err) != tidegate.ClassTransient {
					t.Errorf("%v of a page at an address that has worked, want an outage", err)
				}
				time.Sleep(5 * time.Second)
			}
			stop()
			start()
			time.Sleep(time.Minute)
			_, err := sendOne(awaiting(t, time.Minute), c, message("x"))
			assert.That(t, err == nil, "%v after the return of the server", err)
		})
	}
}
