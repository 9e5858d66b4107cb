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
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
)

var (
	_ transport.Transport  = (*Client)(nil)
	_ transport.LaneSender = (*Client)(nil)
	_ transport.Recaller   = (*Client)(nil)
	_ transport.Pinger     = (*Client)(nil)
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
