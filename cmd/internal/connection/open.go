package connection

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// WithoutHTTP reports whether servers of this kind have no HTTP API for administration.
func (s Server) WithoutHTTP() bool { return s.Kind == RocketMQ || s.Kind == AMQP }

// Address returns the address for messages.
func (s Server) Address() string { return cmp.Or(s.AMQP, s.GRPC) }

// Admin returns a client of the server's HTTP API. The error of a server without one is ErrNoHTTP.
func (s Server) Admin(ctx context.Context, maxAttempts int) (*admin.Client, error) {
	if s.WithoutHTTP() || s.HTTP == "" {
		return nil, ErrNoHTTP
	}
	secret, err := s.Secret(ctx)
	if err != nil {
		return nil, err
	}
	config, err := s.TLSConfig()
	if err != nil {
		return nil, err
	}
	return admin.New(s.HTTP, admin.Options{
		Credentials: tidegate.Credentials{AccessKey: s.Key, SecretKey: secret},
		TLS:         config,
		MaxAttempts: maxAttempts,
	})
}

// Raw returns a client for any request of the server's HTTP API, with the credentials.
func (s Server) Raw(ctx context.Context) (*httpapi.Client, error) {
	if s.WithoutHTTP() || s.HTTP == "" {
		return nil, ErrNoHTTP
	}
	secret, err := s.Secret(ctx)
	if err != nil {
		return nil, err
	}
	config, err := s.TLSConfig()
	if err != nil {
		return nil, err
	}
	return httpapi.New(s.HTTP, httpapi.Options{Op: "tidegate api", TLS: config, Credentials: tidegate.Credentials{AccessKey: s.Key, SecretKey: secret}})
}

// Date returns the time of the server in whole seconds, from the header of a response. It needs no
// credentials.
func (s Server) Date(ctx context.Context) (time.Time, error) {
	if s.WithoutHTTP() || s.HTTP == "" {
		return time.Time{}, ErrNoHTTP
	}
	config, err := s.TLSConfig()
	if err != nil {
		return time.Time{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.HTTP, "/")+"/healthz", nil)
	if err != nil {
		return time.Time{}, err
	}
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}}).Do(r)
	if err != nil {
		return time.Time{}, err
	}
	_ = resp.Body.Close() // only the header counts
	return http.ParseTime(resp.Header.Get("Date"))
}

// ErrNoHTTP is the error of a server without HTTP administration.
var ErrNoHTTP = errors.New("the server has no HTTP API for administration")

// A Transport is a connection for messages. Servers of one kind may support more: a command that
// needs more uses a type assertion.
type Transport interface {
	transport.Transport
	transport.Pinger
	transport.LaneSender
}

// An Opener returns a connection to a server.
type Opener func(context.Context, Server) (Transport, error)

// Transport returns a connection for messages. Close ends it.
func (s Server) Transport(ctx context.Context) (Transport, error) {
	if err := s.Supported(); err != nil {
		return nil, err
	}
	if s.Kind == AMQP {
		return s.amqp(ctx, s)
	}
	if s.GRPC == "" {
		return nil, fmt.Errorf("context %q has no grpc address: give --grpc, or add it to the context", s.Name)
	}
	secret, err := s.Secret(ctx)
	if err != nil {
		return nil, err
	}
	o := rocketmq.Options{
		Namespace:   s.Namespace,
		Credentials: tidegate.Credentials{AccessKey: s.Key, SecretKey: secret},
	}
	if s.TLS {
		if o.TLS, err = s.TLSConfig(); err != nil {
			return nil, err
		}
	}
	return rocketmq.New(s.GRPC, o)
}

// TLSConfig returns the TLS settings of the server.
func (s Server) TLSConfig() (*tls.Config, error) {
	c := &tls.Config{InsecureSkipVerify: s.SkipVerify} //nolint:gosec // the user asked for it by name
	if s.CACert != "" {
		text, err := os.ReadFile(expand(s.CACert))
		if err != nil {
			return nil, fmt.Errorf("cacert cannot be read: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("cacert %s has no certificate in PEM form", s.CACert)
		}
	}
	switch {
	case s.Cert != "" && s.CertKey != "":
		pair, err := tls.LoadX509KeyPair(expand(s.Cert), expand(s.CertKey))
		if err != nil {
			return nil, fmt.Errorf("cert and cert-key cannot be used: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	case s.Cert != "" || s.CertKey != "":
		return nil, errors.New("cert and cert-key belong together: give both")
	}
	return c, nil
}

// CertificateDays returns the number of whole days for which the certificate of the server is still
// valid; negative after its end. The server is that of the HTTP API, or without it that of the
// messages. A server without TLS is an error.
func (s Server) CertificateDays(ctx context.Context) (int64, error) {
	address := s.GRPC
	if u, err := url.Parse(s.HTTP); err == nil && u.Scheme == "https" {
		address = u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), "443")
		}
	} else if !s.TLS {
		return 0, fmt.Errorf("%s has no certificate: the connection is without TLS", cmp.Or(s.GRPC, s.HTTP))
	}
	config, err := s.TLSConfig()
	if err != nil {
		return 0, err
	}
	config.InsecureSkipVerify = true //nolint:gosec // an expired certificate is an answer here, not a failure
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, &tidegate.Error{Op: "check the certificate", Endpoint: address, Err: fmt.Errorf("%w: %w", tidegate.ErrUnavailable, err)}
	}
	defer func() { _ = conn.Close() }() // the certificate is read
	first := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	return int64(math.Floor(time.Until(first.NotAfter).Hours() / 24)), nil
}

// Local reports whether an address is certainly of this machine.
func Local(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// An otherProgramError is the error of a program that does not speak AMQP.
type otherProgramError struct{ address string }

func (e *otherProgramError) Error() string {
	return e.address + " is an ActiveMQ Artemis, which needs the program tidegate-amqp"
}

// Hint returns how to install the program.
func (e *otherProgramError) Hint() string {
	return "It has the same commands and uses the same contexts: go install github.com/tidegate/tidegate/cmd/tidegate-amqp@latest"
}

// Is gives the error the exit code of a server that is not supported.
func (e *otherProgramError) Is(target error) bool { return target == command.ErrUnsupported }

// Supported returns an error if the program does not reach servers of this kind.
func (s Server) Supported() error {
	if s.Kind == AMQP && s.amqp == nil {
		return &otherProgramError{s.AMQP}
	}
	return nil
}

// Host returns the host and port of the address for messages.
func (s Server) Host() string {
	u, err := url.Parse(s.AMQP)
	switch {
	case err != nil || u.Host == "":
		return s.GRPC
	case u.Port() != "":
		return u.Host
	case u.Scheme == "amqps":
		return net.JoinHostPort(u.Hostname(), "5671")
	}
	return net.JoinHostPort(u.Hostname(), "5672")
}
