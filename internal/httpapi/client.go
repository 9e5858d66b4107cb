package httpapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
)

// connectTimeout bounds one attempt to connect.
const connectTimeout = 10 * time.Second

// maxIdle is how many idle connections a client keeps.
const maxIdle = 64

// Options are the choices of a [Client].
type Options struct {
	// Op names New in errors, for example "routes.NewAdmin".
	Op string

	// TLS is the configuration of connections to an https URL. Nil: Go's defaults.
	TLS *tls.Config

	// Credentials identify every request. Zero means none. They have no SessionToken.
	Credentials tidegate.Credentials

	// ClientID is sent as x-mq-client-id. Empty: none.
	ClientID string

	// Dialer makes connections. Nil: TCP.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
}

// A Client makes requests to one broker. Goroutines may share it.
type Client struct {
	base     *url.URL
	endpoint string // host:port, for errors
	options  Options
	network  *http.Transport
	unnamed  atomic.Bool     // the latest attempt to connect failed because DNS does not have the host name
	worked   atomic.Bool     // the broker has accepted a request of this client
	life     context.Context //nolint:containedctx // the client's own life, which Close ends
	end      context.CancelCauseFunc
}

// New returns a client of the broker at an address: an http or https URL, or host:port for http. It
// opens no connection.
func New(address string, o Options) (*Client, error) {
	base, err := parse(address)
	if err != nil {
		return nil, badOption(o.Op, "address", err.Error())
	}
	keys := o.Credentials
	if keys.SessionToken != "" {
		return nil, badOption(o.Op, "Options.Credentials.SessionToken", "the HTTP API has no temporary keys; leave it empty")
	}
	if (keys.AccessKey == "") != (keys.SecretKey == "") {
		return nil, badOption(o.Op, "Options.Credentials", "only one of AccessKey and SecretKey is set; give both, or neither")
	}
	for field, value := range map[string]string{"Options.Credentials.AccessKey": keys.AccessKey, "Options.ClientID": o.ClientID} {
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, badOption(o.Op, field, fmt.Sprintf("%q is not a valid header value; give printable ASCII without spaces", value))
		}
	}
	if strings.Contains(keys.AccessKey, ":") {
		return nil, badOption(o.Op, "Options.Credentials.AccessKey", fmt.Sprintf("%q has a colon, which HTTP Basic authentication does not permit; use another key", keys.AccessKey))
	}
	dialer := &net.Dialer{Timeout: connectTimeout}
	network := &http.Transport{
		DialContext:         dialer.DialContext,
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     o.TLS.Clone(),
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        maxIdle,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,

		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
			if resp.StatusCode == http.StatusProxyAuthRequired || resp.StatusCode == http.StatusForbidden {
				return fmt.Errorf("%w: HTTP status %s", errProxy, resp.Status)
			}
			return nil
		},
	}
	if o.Dialer != nil {
		network.Proxy = nil // the dialer decides where connections lead
		network.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) { return o.Dialer(ctx, addr) }
	}
	c := &Client{base: base, endpoint: base.Host, options: o, network: network}
	dial := network.DialContext
	network.DialContext = func(ctx context.Context, kind, addr string) (net.Conn, error) {
		conn, err := dial(ctx, kind, addr)
		fault, ok := errors.AsType[*net.DNSError](err)
		c.unnamed.Store(ok && fault.IsNotFound)
		return conn, err
	}
	c.life, c.end = context.WithCancelCause(context.Background()) // ended by Close
	return c, nil
}

// errProxy is the error of a connection that the environment's HTTP proxy does not permit.
var errProxy = errors.New("the proxy rejected the connection")

func badOption(op, subject, text string) error {
	return &tidegate.Error{Op: op, Subject: subject, Code: tidegate.CodeBadRequest, Message: text}
}

func parse(address string) (*url.URL, error) {
	if address != "" && !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, errors.Unwrap(err) // without the address, which may have a password in it
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("the scheme is %q; give http://host:port or https://host:port", u.Scheme)
	case u.Hostname() == "":
		return nil, errors.New("it has no host; give http://host:port or https://host:port")
	case u.User != nil:
		return nil, errors.New("it has credentials; give them as Options.Credentials")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("it has a query or a fragment; give http://host:port, with a path only if a proxy needs it")
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/"), ""
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), cmp.Or(map[string]string{"https": "443"}[u.Scheme], "80"))
	}
	return u, nil
}

// Endpoint returns the broker's host:port.
func (c *Client) Endpoint() string { return c.endpoint }

// Close ends the requests under way, which fail with tidegate.ErrClosed, and closes idle
// connections. A second call does nothing.
func (c *Client) Close() {
	c.end(ErrClosed)
	c.network.CloseIdleConnections()
}

// ErrClosed is the error of requests after Close.
var ErrClosed = fmt.Errorf("client %w", tidegate.ErrClosed)

// Closed reports whether Close was called.
func (c *Client) Closed() bool { return c.life.Err() != nil }

// within returns a context that ends with ctx and with the client; stop must be called.
func (c *Client) within(ctx context.Context) (merged context.Context, stop func()) {
	merged, cancel := context.WithCancelCause(ctx)
	detach := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	if c.life.Err() != nil { // AfterFunc cancels in a goroutine, perhaps after the request
		cancel(context.Cause(c.life))
	}
	return merged, func() {
		detach()
		cancel(nil)
	}
}

// A Cursor is the place of a loop over pages. The zero value is the first page. A loop that starts
// elsewhere sets After.
//
// Advance notices a server that repeats its cursors, for example a faulty one or a proxy that
// responds with an old page; the loop would never end. It keeps one earlier cursor and replaces it
// after 1, 2, 4 … pages (Brent's algorithm), so a cycle of n cursors is noticed within 3n pages
// after its begin, with the memory of one cursor.
//
// The function cursor of the console (internal/console/files/api.js) follows the same rule.
type Cursor struct {
	After string // of the next request; empty means the first page

	kept         string
	pages, until int // since kept was replaced, and at which it is replaced again
}

// Advance moves to the page that next of the last response names, and returns false after the last
// page. The error is that of a server that repeats its cursors.
func (c *Cursor) Advance(next string) (more bool, err error) {
	if next == "" {
		c.After = ""
		return false, nil
	}
	if next == c.After || next == c.kept {
		return false, fmt.Errorf("the server responded with the cursor %.100q again, so the pages after it would repeat without end; "+
			"the list is not complete. Look for a fault of the server, or of a proxy before it", next)
	}
	c.After = next
	if c.pages++; c.pages >= c.until {
		c.kept, c.pages, c.until = next, 0, max(1, 2*c.until)
	}
	return true, nil
}
