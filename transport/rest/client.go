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
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
)

var (
	_ transport.Transport          = (*Client)(nil)
	_ transport.LaneSender         = (*Client)(nil)
	_ transport.EndpointConfigurer = (*Client)(nil)
	_ transport.Recaller           = (*Client)(nil)
	_ transport.Pinger             = (*Client)(nil)
	_ transport.Snoozer            = (*Client)(nil)
	_ transport.Reconsumer         = (*Client)(nil)
	_ transport.DeadLetterReporter = (*Client)(nil)
)

// Credentials are an access key of the broker and its secret. Over https they are sent as they are;
// in plain text the secret signs the time of each request and does not travel, which needs clocks
// that agree within minutes.
type Credentials struct {
	AccessKey string
	SecretKey string
}

// Options are the choices of a [Client]. The zero value is a client without credentials.
type Options struct {
	// Credentials identify every request. Zero means none.
	Credentials Credentials

	// TLS is the configuration of connections to an https address; it can have a client
	// certificate. Default: Go's own.
	TLS *tls.Config

	// ClientID names the client to the broker, which counts quotas by it. Default: the
	// address of the client.
	ClientID string

	// RequestTimeout bounds every request, together with the caller's ctx. A receive has it
	// in addition to its wait; a send whose ctx has a deadline has that deadline instead.
	// Default: 3 s.
	RequestTimeout time.Duration

	// MaxResponse bounds the body of a response, in bytes. A receive whose response is larger
	// fails, and its messages come again after their invisible duration. Default: 256 MiB,
	// which is more than 32 messages of 4 MiB.
	MaxResponse int64

	// Dialer makes connections, for in-memory networks and the like; addr is host:port.
	// Default: TCP, through the proxy that the environment names.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
}

const (
	defaultTimeout     = 3 * time.Second
	defaultMaxResponse = 256 << 20
	redial             = time.Second // between attempts to connect
)

// A Client is a transport to one broker. Goroutines may share it.
type Client struct {
	api     *httpapi.Client
	timeout time.Duration
	limit   int64
	known   atomic.Bool // the broker has responded
}

// New returns a transport to the broker at an address: an http or https URL, or host:port, which
// stands for http. It makes no connection. The error names all options at fault.
func New(address string, o Options) (*Client, error) {
	c := &Client{timeout: o.RequestTimeout, limit: o.MaxResponse}
	var errs []error
	if o.RequestTimeout < 0 {
		errs = append(errs, bad("rest.New", "Options.RequestTimeout", "%v is negative; give more, or 0 for %v", o.RequestTimeout, defaultTimeout))
	}
	if o.MaxResponse < 0 {
		errs = append(errs, bad("rest.New", "Options.MaxResponse", "%d is negative; give more, or 0 for %d", o.MaxResponse, defaultMaxResponse))
	}
	if c.timeout == 0 {
		c.timeout = defaultTimeout
	}
	if c.limit == 0 {
		c.limit = defaultMaxResponse
	}
	api, err := httpapi.New(address, httpapi.Options{
		Op: "rest.New", TLS: o.TLS, AccessKey: o.Credentials.AccessKey, SecretKey: o.Credentials.SecretKey, ClientID: o.ClientID, Dialer: o.Dialer,
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

// Close ends the calls under way, which fail with tidegate.ErrClosed as later ones do, and closes
// idle connections. It may be called several times and returns nil.
func (c *Client) Close() error {
	c.api.Close()
	return nil
}

// Capabilities returns the capabilities of a broker's HTTP API; the zero value before its first
// response.
func (c *Client) Capabilities() transport.Capabilities {
	if !c.known.Load() {
		return transport.Capabilities{}
	}
	return transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true,
		RetryResult: true, RepeatReceive: true, Snooze: true, Reconsume: true,
	}
}

// EndpointCapabilities implements transport.EndpointConfigurer: there is one endpoint.
func (c *Client) EndpointCapabilities(endpoint string) transport.Capabilities {
	if endpoint != c.api.Endpoint() {
		return transport.Capabilities{}
	}
	return c.Capabilities()
}

// A call is one request to the broker.
type call struct {
	op, subject string
	method      string
	path        []string // unescaped
	body, out   any
	extra       time.Duration // in addition to RequestTimeout
	unbounded   bool          // the deadline of ctx holds in place of RequestTimeout
}

// do makes one attempt. The failure is nil if it succeeded.
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

// errOf returns the failure as an error that callers compare with nil.
func errOf(f *httpapi.Failure) error {
	if f == nil {
		return nil
	}
	return f.Err
}
