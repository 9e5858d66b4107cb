package endtoend

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A tlsFront is a TLS server in front of a broker, whose certificate can be replaced.
type tlsFront struct {
	b *brokertest.Broker

	mu    sync.Mutex
	cert  *tls.Certificate
	conns []net.Conn
}

func (f *tlsFront) dial(ctx context.Context, addr string) (net.Conn, error) {
	inside, err := f.b.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	client, server := net.Pipe()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, inside, server)
	outside := tls.Server(server, &tls.Config{Certificates: []tls.Certificate{*f.cert}, NextProtos: []string{"h2"}})
	forward := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		_, _ = io.Copy(to, from) // the end of one connection is that of the other
	}
	go forward(inside, outside)
	go forward(outside, inside)
	return client, nil
}

// renew replaces the certificate and cuts all connections, as the restart of a server does.
func (f *tlsFront) renew(cert *tls.Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cert = cert
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
}

// certificate returns a self-signed certificate for a server of any name in names, and adds it to
// pool, which may be nil.
func certificate(t *testing.T, pool *x509.CertPool, name string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(100 * 365 * 24 * time.Hour),
		DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if pool != nil {
		pool.AddCert(parsed)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A certificate that clients do not trust, for example during a renewal, does not end a consumer,
// for any length of time: only the operator knows whether it is a mistake. The consumer reports
// each failure with its remedy, and continues once the certificate is trusted. A send waits for the
// certificate as for a connection, because the address has worked.
func TestConsumerSurvivesCertificateRenewal(t *testing.T) {
	const name = "broker.test"
	pool := x509.NewCertPool()
	trusted, renewed, unknown := certificate(t, pool, name), certificate(t, pool, name), certificate(t, nil, name)
	for _, outage := range []time.Duration{10 * time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{})
			f := &tlsFront{b: b, cert: trusted}
			c := b.ClientWith(rocketmq.Options{Dialer: f.dial, TLS: &tls.Config{RootCAs: pool, ServerName: name}})
			p, err := producer.New(c, producer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			send := func(body string) error {
				_, err := p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte(body)})
				return err
			}
			got := make(chan string, 10)
			outcomes := make(chan consumer.Outcome, 10)
			failures := make(chan error, 10_000)
			push, err := consumer.NewPush(c, consumer.Subscription{Group: "billing", Topic: "orders"},
				func(_ context.Context, d *tidegate.Delivery) error {
					got <- string(d.Body)
					if string(d.Body) == "handled meanwhile" {
						time.Sleep(5 * time.Second)
					}
					return nil
				}, consumer.PushOptions{OnDelivery: func(o consumer.Outcome) { outcomes <- o }, OnReceiveFailure: func(f consumer.ReceiveFailure) { failures <- f.Err }})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- push.Run(ctx) }()
			for _, body := range []string{"before", "handled meanwhile"} {
				if err := send(body); err != nil || <-got != body {
					t.Fatal(err)
				}
			}
			<-outcomes // of the first

			f.renew(unknown)
			time.Sleep(outage)
			if len(ended) > 0 {
				t.Fatalf("Run returned %v after %v", <-ended, outage)
			}
			wrong := 0
			for len(failures) > 0 {
				err := <-failures
				if strings.Contains(err.Error(), "Options.TLS") {
					wrong++
				}
				if !errors.Is(err, tidegate.ErrUnavailable) { // the address has worked
					t.Errorf("failure %v", err)
				}
			}
			if wrong == 0 {
				t.Error("no failure names Options.TLS")
			}
			meanwhile, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			_, err = p.Send(meanwhile, &tidegate.Message{Topic: "orders", Body: []byte("meanwhile")})
			cancel()
			if !errors.Is(err, tidegate.ErrUnavailable) || !strings.Contains(err.Error(), "Options.TLS") {
				t.Errorf("Send: %v, want an outage that names Options.TLS", err)
			}

			f.renew(renewed)
			sent := time.Now()
			for err := send("after"); err != nil; err = send("after") {
				if time.Since(sent) > 10*time.Second {
					t.Fatalf("%v after the renewal: %v", time.Since(sent), err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			// A consumer receives again after 30 s ± 20 % at most.
			for body := ""; body != "after"; {
				body = <-got
			}
			if took := time.Since(sent); took > 40*time.Second {
				t.Errorf("received %v after the renewal", took)
			}
			stop()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
			if outage > 10*time.Second {
				return // the lease has ended
			}
			for range 2 {
				if o := <-outcomes; o.Disposition != consumer.Acked || o.Delivery.Attempt != 1 {
					t.Errorf("outcome %+v, want it acknowledged after the renewal", o)
				}
			}
		})
	}
}

// A certificate of the first endpoint that is not trusted any more is an outage: sends move to the
// second endpoint without an error. At an endpoint that has never worked it is an error at once.
func TestFailoverFromAnUntrustedCertificate(t *testing.T) {
	const name = "broker.test"
	pool := x509.NewCertPool()
	trusted, unknown := certificate(t, pool, name), certificate(t, nil, name)
	for _, worked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			first, second := brokertest.New(t), brokertest.New(t)
			f := &tlsFront{b: first, cert: trusted}
			x, err := failover.New([]failover.Endpoint{
				{Name: "first", Transport: first.ClientWith(rocketmq.Options{Dialer: f.dial, TLS: &tls.Config{RootCAs: pool, ServerName: name}})},
				{Name: "second", Transport: second.Client()},
			}, failover.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			for _, b := range []*brokertest.Broker{first, second} {
				b.CreateTopic("orders", settings.Topic{})
			}
			p, err := producer.New(x, producer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			send := func() (tidegate.Receipt, error) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				return p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("x")})
			}
			if worked {
				if r, err := send(); err != nil || !strings.HasPrefix(r.Endpoint, "first") {
					t.Fatalf("the first send: %+v, %v", r, err)
				}
			}
			f.renew(unknown)
			if r, err := send(); worked && (err != nil || !strings.HasPrefix(r.Endpoint, "second")) {
				t.Errorf("the send after the change: %+v, %v, want the second endpoint", r, err)
			} else if !worked && !errors.Is(err, tidegate.ErrInvalid) && tidegate.Classify(err) != tidegate.ClassPermanent {
				t.Errorf("the send to an endpoint that has never worked: %+v, %v, want a permanent error", r, err)
			}
		})
	}
}
