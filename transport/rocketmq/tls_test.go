package rocketmq

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
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

func TestTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	for name, tt := range map[string]struct {
		config *tls.Config
		want   bool
	}{
		"trusted":     {&tls.Config{RootCAs: pool}, true},
		"not checked": {&tls.Config{InsecureSkipVerify: true}, true},
		"not trusted": {&tls.Config{RootCAs: x509.NewCertPool()}, false},
		"plain text":  {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				s.stop()
				l := bufconn.Listen(1 << 20)
				s.grpc = grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
				rmqpb.RegisterMessagingServiceServer(s.grpc, s)
				n.ports[testAddr] = l
				go s.grpc.Serve(l)
				_, err := sendOne(t.Context(), newClient(t, n, func(o *Options) { o.TLS = tt.config }), message("x"))
				if (err == nil) != tt.want || !tt.want && !errors.Is(err, tidegate.ErrUnavailable) {
					t.Errorf("sent: %v", err)
				}
			})
		})
	}
}

// Of several addresses the first that can be reached is used.
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
			t.Errorf("%d connections, want one: the route names what we have", len(c.endpoints))
		}
	})
}
