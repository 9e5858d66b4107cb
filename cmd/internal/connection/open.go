package connection

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// Admin returns a client of the server's HTTP API. The error of a RocketMQ server, which has none,
// is ErrNoHTTP.
func (s Server) Admin(ctx context.Context, maxAttempts int) (*admin.Client, error) {
	if s.Kind == RocketMQ || s.HTTP == "" {
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
	if s.Kind == RocketMQ || s.HTTP == "" {
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

// ErrNoHTTP is the error of a server without HTTP administration.
var ErrNoHTTP = errors.New("the server has no HTTP API for administration")

// Transport returns a connection for messages. Close ends it.
func (s Server) Transport(ctx context.Context) (*rocketmq.Client, error) {
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
