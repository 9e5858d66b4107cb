// Package rest is a transport over the HTTP API of a tidegate broker. It is for networks that
// permit HTTP but not gRPC, and for programs that must not link gRPC. Producers and consumers need
// no change:
//
//	c, err := rest.New("https://broker.example:8082", rest.Options{Credentials: keys})
//	if err != nil { ... }
//	defer c.Close()
//	p, err := producer.New(c, producer.Options{})
//
// Use transport/rocketmq where gRPC is available: it costs less for each message and has more
// features.
//
// # One attempt
//
// A call makes one attempt. For calls whose ctx comes from transport.AwaitConnection,
// github.com/hashicorp/go-retryablehttp tries to connect once a second until it succeeds or ctx
// ends. It never repeats a request that reached a connection, and never retries a throttled
// response.
//
// # Differences from transport/rocketmq
//
// The HTTP API lacks some features of gRPC:
//
//   - A change of an invisible duration whose response was lost cannot be repeated
//     (no Capabilities.RepeatChange): the broker redelivers the message when the lease ends.
//   - There are no transactions, because the broker sends transaction checks over a gRPC stream.
//   - A client reads the settings of topics and groups only with the permission to observe them.
//     Without it, the client uses defaults.
//   - There are no routes: all requests go to the address given to New.
//   - A receive cannot select one queue.
package rest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
)

var (
	_ transport.Transport      = (*Client)(nil)
	_ transport.LaneSender     = (*Client)(nil)
	_ transport.LiteSubscriber = (*Client)(nil)
	_ transport.Recaller       = (*Client)(nil)
	_ transport.Pinger         = (*Client)(nil)
)

// Options configure a [Client]. The zero value is a client without credentials.
type Options struct {
	// Credentials authenticate every request. Zero means none.
	Credentials tidegate.Credentials

	// TLS configures connections to an https address and can have a client certificate. Default:
	// Go's configuration.
	TLS *tls.Config

	// ClientID identifies the client to the broker, which counts quotas for each ID. Default: the
	// address of the client.
	ClientID string

	// RequestTimeout bounds every request, in addition to the caller's ctx. A receive has its wait
	// in addition. A send whose ctx has a deadline has that deadline instead. Default: 3 s.
	RequestTimeout time.Duration

	// MaxResponse bounds the body of a response, in bytes. A receive with a larger response fails,
	// and its messages are redelivered after their invisible duration. Default: 256 MiB, which is
	// more than 32 messages of 4 MiB.
	MaxResponse int64

	// Dialer creates connections, for example in an in-memory network; addr is host:port. Default:
	// TCP, through the proxy of the environment.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
}

const (
	defaultTimeout     = 3 * time.Second
	defaultMaxResponse = 256 << 20
	redial             = time.Second // between attempts to connect
)

// A Client is a transport to one broker. Several goroutines may share it.
type Client struct {
	api     *httpapi.Client
	timeout time.Duration
	limit   int64
	known   atomic.Bool // set after the first response of the broker
}

// New returns a transport to the broker at an address. The address is an http or https URL, or
// host:port for http. New does not connect. The error names all invalid options.
func New(address string, o Options) (*Client, error) {
	c := &Client{timeout: o.RequestTimeout, limit: o.MaxResponse}
	var errs []error
	if o.RequestTimeout < 0 {
		errs = append(errs, bad("rest.New", "Options.RequestTimeout", "%v is negative; give a positive value, or 0 for %v", o.RequestTimeout, defaultTimeout))
	}
	if o.MaxResponse < 0 {
		errs = append(errs, bad("rest.New", "Options.MaxResponse", "%d is negative; give 1 or more, or 0 for %d", o.MaxResponse, defaultMaxResponse))
	}
	if c.timeout == 0 {
		c.timeout = defaultTimeout
	}
	if c.limit == 0 {
		c.limit = defaultMaxResponse
	}
	api, err := httpapi.New(address, httpapi.Options{
		Op: "rest.New", TLS: o.TLS, Credentials: o.Credentials, ClientID: o.ClientID, Dialer: guard.Dial("Options.Dialer", o.Dialer, nil),
	})
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	c.api = api
	return c, nil
}

func bad(op, subject, format string, args ...any) *tidegate.Error {
	return &tidegate.Error{Op: op, Subject: subject, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// Close ends the calls under way and closes idle connections. These calls and later ones fail with
// tidegate.ErrClosed. Close may be called several times and returns nil.
func (c *Client) Close() error {
	c.api.Close()
	return nil
}

// Capabilities returns the capabilities of a broker's HTTP API: all except RepeatChange. Before the
// broker's first response, and for another endpoint, it returns the zero value.
func (c *Client) Capabilities(endpoint string) transport.Capabilities {
	if !c.known.Load() || endpoint != "" && endpoint != c.api.Endpoint() {
		return transport.Capabilities{}
	}
	return transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true,
		RetryResult: true, RepeatReceive: true,
		Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
	}
}

// A call is one request to the broker.
type call struct {
	op, subject string
	method      string
	path        []string // unescaped
	body, out   any
	extra       time.Duration // added to RequestTimeout
	unbounded   bool          // the deadline of ctx replaces RequestTimeout
}

// do makes one attempt. The failure is nil if the attempt succeeded.
func (c *Client) do(ctx context.Context, q call) *httpapi.Failure {
	r := httpapi.Request{
		Op: q.op, Subject: q.subject, Method: q.method, Path: httpapi.Path(q.path...), Body: q.body, Out: q.out,
		Timeout: c.timeout + q.extra, MaxResponse: c.limit, Reads: q.method == "GET", WaitOut: true,
	}
	if q.unbounded {
		r.Timeout = 0
	}
	await := transport.AwaitsConnection(ctx)
	err := c.api.Do(ctx, &r, func(a httpapi.Attempt) (time.Duration, bool) { return redial, await && !a.Connected && a.Curable })
	f, ok := errors.AsType[*httpapi.Failure](err)
	if !ok || f.FromBroker {
		c.known.Store(true)
	}
	return f
}

// errOf returns the failure as an error that is nil if there is none.
func errOf(f *httpapi.Failure) error {
	if f == nil {
		return nil
	}
	return f.Err
}

// sendAttempts is the number of attempts that RocketMQ documents for producers. The HTTP API does
// not push it.
const sendAttempts = 3

// look reads a resource. allowed is false if the credentials may not observe it.
func (c *Client) look(ctx context.Context, op, subject string, out any, path ...string) (allowed bool, err error) {
	f := c.do(ctx, call{op: op, subject: subject, method: "GET", path: path, out: out})
	if f != nil && errors.Is(f.Err, tidegate.ErrForbidden) {
		return false, nil
	}
	return f == nil, errOf(f)
}

// topic returns an error if the topic does not exist.
func (c *Client) topic(ctx context.Context, op, topic string) error {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return err
	}
	_, err := c.look(ctx, op, topic, nil, "topics", topic)
	return err
}

// ProducerSettings returns RocketMQ's documented values, 3 attempts and a body of 4 MiB, and no
// backoff, because the HTTP API has no settings for producers. It sends a request that checks
// whether the topic exists.
func (c *Client) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	if err := c.topic(ctx, "ProducerSettings", topic); err != nil {
		return transport.ProducerSettings{}, err
	}
	return transport.ProducerSettings{MaxAttempts: sendAttempts, MaxBodySize: tidegate.MaxBodySize}, nil
}

// A groupSettings is the part of a group's settings that consumers use.
type groupSettings struct {
	FIFO        bool              `json:"fifo"`
	MaxAttempts int               `json:"max_attempts"`
	Retry       backoff.Steps     `json:"retry"`
	Interval    *httpapi.Duration `json:"fifo_retry_interval"`
}

// ConsumerSettings requests the settings of the group and the address settings of the topic, which
// override those of the group. ReceiveBatchSize is always 32, and LongPolling zero. The other
// settings are zero if the group does not exist yet; its first receive creates it. Settings that
// the credentials may not observe count as not set.
func (c *Client) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	const op = "ConsumerSettings"
	if err := errors.Join(tidegate.ValidateGroup(group), tidegate.ValidateTopic(topic)); err != nil {
		return transport.ConsumerSettings{}, err
	}
	s := transport.ConsumerSettings{ReceiveBatchSize: maxReceive}
	var g groupSettings
	allowed, err := c.look(ctx, op, group, &g, "groups", group)
	switch {
	case errors.Is(err, tidegate.ErrNotFound):
		return s, nil
	case err != nil:
		return transport.ConsumerSettings{}, err
	case allowed:
		s.FIFO, s.MaxAttempts = g.FIFO, g.MaxAttempts
		if len(g.Retry) > 0 {
			s.Retry = g.Retry
		}
		if g.FIFO && g.Interval != nil {
			s.Retry = backoff.Steps{time.Duration(*g.Interval)}
		}
	}
	var a addressSettings
	if _, err := c.look(ctx, op, topic, &a, "topics", topic, "address-settings"); err != nil {
		return transport.ConsumerSettings{}, err
	}
	if a.redelivers() {
		s.MaxAttempts, s.Retry = a.attempts(), a.delays()
	}
	return s, nil
}

// addressSettings are the redelivery settings of a topic.
type addressSettings struct {
	Delay      *int64   `json:"redelivery-delay"` // in milliseconds
	Multiplier *float64 `json:"redelivery-delay-multiplier"`
	Factor     *float64 `json:"redelivery-collision-avoidance-factor"`
	Max        *int64   `json:"max-redelivery-delay"`
	Attempts   *int     `json:"max-delivery-attempts"`

	// If one of the following fields is set, the defaults of the fields above apply too.
	Address *string `json:"dead-letter-address"`
	Auto    *bool   `json:"auto-create-dead-letter-resources"`
	Prefix  *string `json:"dead-letter-queue-prefix"`
	Suffix  *string `json:"dead-letter-queue-suffix"`
}

func (a *addressSettings) redelivers() bool { return *a != (addressSettings{}) }

const defaultDeliveryAttempts = 10

func (a *addressSettings) attempts() int {
	if a.Attempts == nil {
		return defaultDeliveryAttempts
	}
	return *a.Attempts
}

// delays returns the delays between deliveries: Delay, Delay times Multiplier, and so on up to Max.
func (a *addressSettings) delays() backoff.Policy {
	const maxFactor = 10 // default of Max, as a multiple of Delay
	ms := func(n *int64, otherwise time.Duration) time.Duration {
		if n == nil {
			return otherwise
		}
		return time.Duration(*n) * time.Millisecond
	}
	e := backoff.Exponential{Initial: ms(a.Delay, 0), Multiplier: 1, Jitter: backoff.NoJitter}
	if e.Initial <= 0 {
		return backoff.Steps{0}
	}
	e.Max = ms(a.Max, maxFactor*e.Initial)
	if a.Multiplier != nil {
		e.Multiplier = *a.Multiplier
	}
	if a.Factor != nil && *a.Factor > 0 {
		e.Jitter = *a.Factor
	}
	e.Initial = min(e.Initial, e.Max)
	if e.Max <= 0 || e.Multiplier < 1 { // only the broker computes decreasing delays
		return backoff.Steps{e.Initial}
	}
	return e
}

// Queues returns transport.AnyQueue, because one receive serves all queues. It sends a request that
// checks whether the topic exists.
func (c *Client) Queues(ctx context.Context, group, topic string) ([]int, error) {
	if err := tidegate.ValidateGroup(group); err != nil {
		return nil, err
	}
	if err := c.topic(ctx, "Queues", topic); err != nil {
		return nil, err
	}
	return []int{transport.AnyQueue}, nil
}

// Ping implements transport.Pinger. A topic that the credentials may not observe counts as
// existing. Ping waits for a connection until ctx ends, and needs no permission except valid
// credentials.
func (c *Client) Ping(ctx context.Context, topics ...string) error {
	ctx = transport.AwaitConnection(ctx)
	if len(topics) == 0 {
		// The path does not exist. The broker reports that only to authenticated clients.
		f := c.do(ctx, call{op: "Ping", method: "GET", path: []string{"ping"}})
		if f != nil && f.FromBroker && f.Status == 404 {
			return nil
		}
		return errOf(f)
	}
	for _, t := range topics {
		if err := c.topic(ctx, "Ping", t); err != nil {
			return err
		}
	}
	return nil
}
