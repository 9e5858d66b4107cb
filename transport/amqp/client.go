package amqp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp/internal/conn"
	"github.com/tidegate/tidegate/transport/held"
)

var (
	_ transport.Transport  = (*Client)(nil)
	_ transport.LaneSender = (*Client)(nil)
	_ transport.Pinger     = (*Client)(nil)
)

// A Client is a transport to one Artemis server. Several goroutines may share it.
type Client struct {
	*held.Table
	options    Options
	endpoint   string
	host       string // of this program, for Delivery.BornHost
	supervisor *conn.Supervisor
	cache      linkCache
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
	c.Table = held.New(system{c}, held.Options{Settings: c.settings, Grace: grace, Linger: linger})
	return c, nil
}

// grace is longer than a round trip: a receive that does not wait gets the messages that the queue
// has. linger is the time for the messages that follow the first of a receive.
const (
	grace  = 200 * time.Millisecond
	linger = 10 * time.Millisecond
)

// Close returns unsettled messages to the server, ends the calls under way and closes the
// connection. These calls and later ones fail with tidegate.ErrClosed. Close may be called several
// times and returns nil.
func (c *Client) Close() error {
	err := c.Table.Close()
	c.supervisor.Close()
	return err
}

// Capabilities returns the same capabilities for every server: Suspend, IdempotentDeadLetter,
// Snooze and RepeatReceive.
func (c *Client) Capabilities(endpoint string) transport.Capabilities {
	can := c.Table.Capabilities(endpoint)
	can.IdempotentDeadLetter = true
	return can
}

// live returns the connection.
func (c *Client) live(ctx context.Context) (*conn.Live, *tidegate.Error) {
	if ctx.Err() != nil {
		return nil, &tidegate.Error{Err: context.Cause(ctx)}
	}
	if l := c.supervisor.Current(); l != nil {
		return l, nil
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

// settings returns the settings of a group. A panic of Options.Groups is passed on.
func (c *Client) settings(group, topic string) transport.ConsumerSettings {
	var s transport.ConsumerSettings
	if c.options.Groups != nil {
		s = c.options.Groups(group, topic)
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = defaultAttempts
	}
	if s.ReceiveBatchSize == 0 {
		s.ReceiveBatchSize = defaultBatch
	}
	return s
}

// ConsumerSettings returns the settings of Options.Groups. It checks neither the group nor the
// topic.
func (c *Client) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	if err := c.usable(ctx, "ConsumerSettings", group); err != nil {
		return transport.ConsumerSettings{}, err
	}
	var s transport.ConsumerSettings
	if err := guarded("Options.Groups", func() { s = c.settings(group, topic) }); err != nil {
		return s, c.named(&tidegate.Error{Err: err}, "ConsumerSettings", group)
	}
	return s, nil
}

// guarded calls a function of the program. The error describes its panic.
func guarded(function string, f func()) (err error) {
	returned := false
	defer func() {
		if !returned {
			err = fmt.Errorf("%s panicked: %v", function, recover())
		}
	}()
	f()
	returned = true
	return nil
}

// Queues checks that the server has or creates the topic, and returns AnyQueue.
func (c *Client) Queues(ctx context.Context, group, topic string) ([]int, error) {
	if err := c.usable(ctx, "QueryAssignment", topic); err != nil {
		return nil, err
	}
	if err := c.reach(ctx, "QueryAssignment", topic); err != nil {
		return nil, err
	}
	return []int{transport.AnyQueue}, nil
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
