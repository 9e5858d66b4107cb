package main

import (
	"context"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/transport/amqp"
)

// open returns a connection to a server. It does not connect yet.
func open(ctx context.Context, s cli.Server) (cli.Transport, error) {
	secret, err := s.Secret(ctx)
	if err != nil {
		return nil, err
	}
	o := amqp.Options{
		Credentials: tidegate.Credentials{AccessKey: s.Key, SecretKey: secret},
		External:    external(s),
		CopyRetries: true, // the delays of --then retry=TIME and of failed programs
	}
	if s.TLS {
		if o.TLS, err = s.TLSConfig(); err != nil {
			return nil, err
		}
	}
	return amqp.New(s.AMQP, o)
}

// external reports whether the client certificate authenticates.
func external(s cli.Server) bool { return s.Cert != "" && s.Key == "" }

func encrypted(s cli.Server) bool { return strings.HasPrefix(s.AMQP, "amqps://") }
