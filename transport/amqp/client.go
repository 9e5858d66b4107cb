package amqp

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp/internal/conn"
)

// A Client is a transport to one Artemis server. Several goroutines may share it.
type Client struct {
	transport.Base
	options    Options
	endpoint   string
	host       string // of this program, for Delivery.BornHost
	supervisor *conn.Supervisor
}

// New returns a transport to the server at an address: amqp://host:port, amqps://host:port, or
// host:port without TLS. New does not connect. The error names all invalid options.
func New(address string, o Options) (*Client, error) {
	endpoint, secure, err := parse(address)
	o, invalid := o.withDefaults()
	if !secure && err == nil && (o.TLS != nil || o.External) {
		invalid = errors.Join(invalid, bad("Options.TLS", "the address has no TLS; give amqps://%s", endpoint))
	}
	if err = errors.Join(err, invalid); err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // without one, deliveries have no BornHost
	c := &Client{options: o, endpoint: endpoint, host: host}
	c.supervisor = conn.New(conn.Options{Dial: o.dialer(endpoint, secure), DialTimeout: dialTimeout, AMQP: o.connection(endpoint)})
	return c, nil
}

// Close ends the calls under way and closes the connection. These calls and later ones fail with
// tidegate.ErrClosed. Close may be called several times and returns nil.
func (c *Client) Close() error {
	c.supervisor.Close()
	return nil
}

// live returns the connection.
func (c *Client) live(ctx context.Context) (*conn.Live, *tidegate.Error) {
	if ctx.Err() != nil {
		return nil, &tidegate.Error{Err: context.Cause(ctx)}
	}
	await := transport.AwaitsConnection(ctx)
	if !await {
		var cancel context.CancelFunc
		ctx, cancel = c.bounded(ctx)
		defer cancel()
	}
	return c.supervisor.Get(ctx, await)
}

// bounded returns ctx with RequestTimeout.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	d := c.options.RequestTimeout
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w: no response within %v", tidegate.ErrUnavailable, d))
}

// named completes an error of a call.
func (c *Client) named(e *tidegate.Error, op, subject string) error {
	if e == nil {
		return nil
	}
	e.Op, e.Subject, e.Endpoint = op, subject, c.endpoint
	return e
}

// ProducerSettings returns the transport's own settings: 3 attempts and Options.MaxBodySize.
// Artemis has none. It does not check the topic.
func (c *Client) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	if err := c.usable(ctx, "ProducerSettings", topic); err != nil {
		return transport.ProducerSettings{}, err
	}
	return transport.ProducerSettings{MaxAttempts: 3, MaxBodySize: c.options.MaxBodySize}, nil
}

// usable checks that neither the client is closed nor ctx has ended.
func (c *Client) usable(ctx context.Context, op, subject string) error {
	if ctx.Err() != nil {
		return c.named(&tidegate.Error{Err: context.Cause(ctx)}, op, subject)
	}
	if c.supervisor.Closed() {
		return c.named(&tidegate.Error{Err: tidegate.ErrClosed}, op, subject)
	}
	return nil
}
