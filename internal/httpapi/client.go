// Package httpapi sends requests to the HTTP API of a tidegate broker. Packages broker/admin and
// transport/rest share it. They retry different requests, so each passes its own [Decision] to
// [Client.Do].
//
// The library go-retryablehttp repeats requests, waits, and rewinds bodies. This package adds
//   - a time limit for each attempt,
//   - a size limit for responses, which are read completely,
//   - a record of whether an attempt had a connection, and
//   - a [Failure] with the broker's code for every failed request.
//
// The server and the clients share the JSON of a [Delivery].
//
// Package httpapi imports nothing of the broker, so its users link no storage engine.
package httpapi

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
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
	// Op names New in errors, for example "admin.New".
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

// Pages calls fetch for each page of a list: with the cursor after, "" for the first page, and then
// with the one that the call before returned. It ends after a call that returns "" or an error.
//
// It notices a server that repeats its cursors, for example a faulty one or a proxy that responds
// with an old page; the loop would never end. It keeps one earlier cursor and replaces it after 1,
// 2, 4 … pages (Brent's algorithm), so a cycle of n cursors is noticed within 3n pages after its
// begin, with the memory of one cursor.
//
// The function cursor of the console (internal/console/files/api.js) follows the same rule.
func Pages(after string, fetch func(after string) (next string, err error)) error {
	kept := ""
	pages, until := 0, 0 // since kept was replaced, and at which it is replaced again
	for {
		next, err := fetch(after)
		switch {
		case err != nil || next == "":
			return err
		case next == after || next == kept:
			return fmt.Errorf("the server responded with the cursor %.100q again, so the pages after it would repeat without end; "+
				"the list is not complete. Look for a fault of the server, or of a proxy before it", next)
		}
		after = next
		if pages++; pages >= until {
			kept, pages, until = next, 0, max(1, 2*until)
		}
	}
}

// dateTimeLayout is the format of the header x-mq-date-time, which the signature covers.
const dateTimeLayout = "20060102T150405Z"

func (c *Client) header(h http.Header, body bool) {
	h.Set("Accept", "application/json")
	h.Set("User-Agent", "tidegate")
	if body {
		h.Set("Content-Type", "application/json")
	}
	if id := c.options.ClientID; id != "" {
		h.Set("x-mq-client-id", id)
	}
}

// signed returns the request with credentials. Over TLS the credentials are the access key and its
// secret, which do not depend on the clock. In plain text they are RocketMQ's signature, which is
// computed for each attempt.
func (c *Client) signed(r *http.Request) *http.Request {
	if c.options.Credentials.AccessKey == "" {
		return r
	}
	r.Header = r.Header.Clone() // the caller's request stays as it is
	if c.base.Scheme == "https" {
		r.SetBasicAuth(c.options.Credentials.AccessKey, c.options.Credentials.SecretKey)
		return r
	}
	now := time.Now().UTC().Format(dateTimeLayout)
	mac := hmac.New(sha1.New, []byte(c.options.Credentials.SecretKey))
	mac.Write([]byte(now))
	r.Header.Set("x-mq-date-time", now)
	r.Header.Set("Authorization", fmt.Sprintf("MQv2-HMAC-SHA1 Credential=%s, SignedHeaders=x-mq-date-time, Signature=%X", c.options.Credentials.AccessKey, mac.Sum(nil)))
	return r
}

// isTLS reports whether an attempt failed in TLS, for example in the verification of the
// certificate. A retry cannot succeed.
func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	// net/http replaces a RecordHeaderError by ErrSchemeMismatch.
	return errors.Is(err, http.ErrSchemeMismatch)
}

// RoundTrip sends a request to the broker, for any host in its URL. The credentials of the client
// replace those of the request. RoundTrip implements [http.RoundTripper] for programs that forward
// requests: it repeats nothing, and the body of the response is that of the broker.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL = &url.URL{Scheme: c.base.Scheme, Host: c.base.Host, Path: c.base.Path + r.URL.Path, RawQuery: r.URL.RawQuery}
	if r.URL.RawPath != "" {
		out.URL.RawPath = c.base.EscapedPath() + r.URL.EscapedPath()
	}
	out.Host = c.base.Host
	out.Header.Del("Authorization")
	return c.network.RoundTrip(c.signed(out))
}
