// Package amqp is a transport for Apache ActiveMQ Artemis over AMQP 1.0; other AMQP servers are not
// supported. Artemis 2.37 is tested. The package makes one attempt for each call, as package
// transport demands; the producer and the consumer retry. It reconnects automatically. The program
// tidegate-foreign (cmd/tidegate-foreign of the core) sends, receives and finds faults from a
// shell.
//
//	client, err := amqp.New("amqp://localhost:5672", amqp.Options{})
//	p, err := producer.New(client, producer.Options{})
//
// # Addresses and queues
//
// A topic is an address of the routing type MULTICAST. A consumer group is a queue of that address,
// by its fully qualified name "topic::topic.group" ([Options.Queue]): queue names are unique in a
// server. Artemis creates both on demand if the address settings permit it (auto-create-addresses,
// auto-create-queues). Set auto-delete-queues to false: otherwise Artemis deletes the queue of a
// group without consumers once it is empty, and the group misses the messages that are sent before
// it returns.
//
// # Retries and dead letters
//
// By default a failed message is delivered again after the redelivery-delay of the address
// settings. With [Options.CopyRetries] the transport sends a copy to the queue of the group, which
// Artemis delivers after the delay that the consumer chose, and then acknowledges the message. A
// dead letter is such a copy to the anycast queue "group.DLQ", with its origin and reason. Artemis
// detects the repetition of a copy. [Options.Groups] sets the maximum of attempts and the FIFO
// groups. Package transport/held has the leases, and states the losses of a crash of this process.
//
// # Throttling
//
// A full address, memory or disk throttles sends ([tidegate.ErrThrottled], reply code 530), and the
// server stores nothing. Artemis rejects the message, or grants no credit; the transport reports
// the latter after 1 s. Neither has a time to wait. With the address-full-policy DROP Artemis
// accepts messages and discards them, which no client can detect: do not use it.
//
// # Durability
//
// All messages are durable. With journal-datasync, the default, an accepted message survives a
// crash of the server. Acknowledgements have no response in AMQP: nil means that the
// acknowledgement was written to the connection. A crash of the server can lose acknowledgements
// and deliver those messages again.
package amqp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
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
	supervisor *supervisor
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
	c.supervisor = newSupervisor(connOptions{Dial: o.dialer(endpoint, secure), DialTimeout: dialTimeout, AMQP: o.connection(endpoint)})
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
func (c *Client) live(ctx context.Context) (*connection, *tidegate.Error) {
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

// A place is an address of the server with its routing type.
type place struct {
	address string
	anycast bool
}

// capability is the capability of a source or target that selects the routing type.
func (p place) capability() string {
	if p.anycast {
		return "queue"
	}
	return "topic"
}

const deadLetterPrefix = "%DLQ%"

// place returns the address that the messages of a topic are sent to.
func (c *Client) place(topic string) place {
	if group, ok := strings.CutPrefix(topic, deadLetterPrefix); ok {
		return c.deadLetters(group)
	}
	return place{address: topic}
}

// deadLetters returns the address of the dead letters of a group.
func (c *Client) deadLetters(group string) place {
	return place{address: group + ".DLQ", anycast: true}
}

// queue returns the queue of a group.
func (c *Client) queue(topic, group string) place {
	if p := c.place(topic); p.anycast {
		return p
	}
	return place{address: topic + "::" + c.options.Queue(topic, group)}
}
