package rest_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// Only a missing connection sets NotConnected: a host name that DNS does not have needs a change of
// the configuration.
func TestNotConnected(t *testing.T) {
	blackHole := errors.New("no response")
	for name, tt := range map[string]struct {
		dial error
		want bool
	}{
		"refused":                {errors.New("connection refused"), true},
		"no response to connect": {blackHole, true},
		"no such host":           {&net.DNSError{Err: "no such host", Name: "broker.test", IsNotFound: true}, false},
		"DNS does not respond":   {&net.DNSError{Err: "server misbehaving", Name: "broker.test", IsTemporary: true}, true},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			c := assert.Value(rest.New("broker.test", rest.Options{RequestTimeout: 5 * time.Second, Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
				if tt.dial == blackHole {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, tt.dial
			}}))(t)
			defer c.Close()
			short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			for what, ctx := range []context.Context{transport.AwaitConnection(short), t.Context()} {
				e, ok := errors.AsType[*tidegate.Error](c.Send(ctx, []*tidegate.Message{message("1")})[0].Err)
				if !ok || e.NotConnected != tt.want || e.MaybeStored || tidegate.Classify(e) != tidegate.ClassTransient {
					t.Errorf("%d: %#v, want a transient error with NotConnected %t", what, e, tt.want)
				}
			}
			time.AfterFunc(time.Second, func() { c.Close() })
			e, _ := errors.AsType[*tidegate.Error](c.Send(transport.AwaitConnection(t.Context()), []*tidegate.Message{message("2")})[0].Err)
			assert.That(t, errors.Is(e, tidegate.ErrClosed) && !e.NotConnected, "during Close: %#v", e)
		})
	}
}

// A certificate that is not trusted, and rejected credentials, are outages at a broker that has
// accepted requests of the client, and permanent errors at any other.
func TestBrokerThatHasWorked(t *testing.T) {
	const accept, reject, distrust = 0, 1, 2
	for name, steps := range map[string][]int{
		"never worked":             {reject, distrust},
		"worked, then rejects":     {accept, reject, accept},
		"worked, then untrusted":   {accept, distrust, accept},
		"rejected before it works": {reject, accept, reject},
	} {
		t.Run(name, func(t *testing.T) {
			var step atomic.Int64
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if step.Load() == reject {
					problem(w, 401, 40100)
					return
				}
				io.WriteString(w, `{"results":[{"id":"1"}]}`)
			}))
			srv.Config.ErrorLog = log.New(io.Discard, "", 0)
			srv.StartTLS()
			defer srv.Close()
			trusted := x509.NewCertPool()
			trusted.AddCert(srv.Certificate())
			c := assert.Value(rest.New(srv.URL, rest.Options{TLS: &tls.Config{RootCAs: trusted, VerifyConnection: func(tls.ConnectionState) error {
				if step.Load() == distrust {
					return &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}
				}
				return nil
			}}}))(t)
			defer c.Close()
			worked := false
			for i, what := range steps {
				step.Store(int64(what))
				srv.CloseClientConnections()
				var e *tidegate.Error
				for { // a connection that the server has just closed may still be in use
					e, _ = errors.AsType[*tidegate.Error](c.Send(t.Context(), []*tidegate.Message{message("1")})[0].Err)
					if e == nil || !errors.Is(e, io.EOF) && !strings.Contains(e.Error(), "reset") && !strings.Contains(e.Error(), "closed") {
						break
					}
				}
				ok := e == nil
				switch {
				case what == accept:
				case !worked:
					ok = !ok && tidegate.Classify(e) == tidegate.ClassPermanent && !e.Lapsed && !e.NotConnected
				case what == reject:
					ok = !ok && e.Lapsed && e.Code == tidegate.CodeUnauthorized && tidegate.Classify(e) == tidegate.ClassTransient
				default:
					ok = !ok && e.NotConnected && e.Code == 0 && tidegate.Classify(e) == tidegate.ClassTransient && strings.Contains(e.Error(), "expired")
				}
				assert.That(t, ok && (e == nil || !e.MaybeStored), "step %d: %#v", i, e)
				worked = worked || what == accept
			}
		})
	}
}

// A client knows the capabilities of its own broker, by its name or without one, after the broker's
// first response. The response of a proxy shows nothing about the broker behind it. The client has
// none for another endpoint.
func TestCapabilitiesOfEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := transport.Capabilities{
			Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
		}
		up := false
		c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			if up {
				problem(w, 404, 40402)
				return
			}
			http.Error(w, "<html>no backend</html>", http.StatusBadGateway)
		})
		for _, tt := range []struct {
			endpoint      string
			responded, up bool
			want          transport.Capabilities
		}{
			{"", false, false, transport.Capabilities{}},
			{"broker.test:80", true, false, transport.Capabilities{}},
			{"", true, true, all},
			{"broker.test:80", true, true, all},
			{"other.test:80", true, true, transport.Capabilities{}},
		} {
			if up = tt.up; tt.responded {
				assert.MustThat(t, assert.Err(c.ProducerSettings(t.Context(), "orders")) != nil, "no error")
			}
			if got := c.Capabilities(tt.endpoint); got != tt.want {
				t.Errorf("endpoint %q, after a response: %t, of the broker: %t; %+v, want %+v", tt.endpoint, tt.responded, tt.up, got, tt.want)
			}
		}
	})
}
