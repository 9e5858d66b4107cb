package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/httpapi"
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

	// Backoff is how long to wait before attempt n+2, if the broker does not ask for longer.
	// Default: backoff.Default() with a Max of 10 s.
	Backoff backoff.Policy

	// MaxAttempts bounds the attempts of one call, the first included. Default: 5.
	MaxAttempts int

	// AttemptTimeout bounds each attempt, including its response. Default: 1 minute.
	AttemptTimeout time.Duration

	// MaxResponse bounds the body of a response, in bytes; a larger one is an error.
	// Default: 64 MiB.
	MaxResponse int64

	// Dialer makes connections, for in-memory networks and the like; addr is host:port.
	// Default: TCP, through the proxy that the environment names.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
}

const (
	defaultAttempts    = 5
	defaultTimeout     = time.Minute
	defaultMaxResponse = 64 << 20
	defaultMaxBackoff  = 10 * time.Second
)

// A Client administers one broker. Goroutines may share it.
type Client struct {
	api      *httpapi.Client
	backoff  backoff.Policy
	attempts int
	timeout  time.Duration
	limit    int64
}

// New returns a client of the broker at an address: an http or https URL, or host:port, which
// stands for http. It makes no connection. The error names all options at fault.
func New(address string, o Options) (*Client, error) {
	c := &Client{backoff: o.Backoff, attempts: o.MaxAttempts, timeout: o.AttemptTimeout, limit: o.MaxResponse}
	var errs []error
	for _, f := range []struct {
		field string
		value int64
	}{{"MaxAttempts", int64(o.MaxAttempts)}, {"AttemptTimeout", int64(o.AttemptTimeout)}, {"MaxResponse", o.MaxResponse}} {
		if f.value < 0 {
			errs = append(errs, &tidegate.Error{Op: "admin.New", Subject: "Options." + f.field, Code: tidegate.CodeBadRequest,
				Message: fmt.Sprintf("%d is negative; give more, or 0 for the default", f.value)})
		}
	}
	if e, ok := o.Backoff.(backoff.Exponential); ok {
		if err := e.Validate(); err != nil {
			errs = append(errs, &tidegate.Error{Op: "admin.New", Subject: "Options.Backoff", Code: tidegate.CodeBadRequest, Err: err})
		}
	}
	if c.backoff == nil {
		c.backoff = backoff.Exponential{Max: defaultMaxBackoff}
	}
	if c.attempts == 0 {
		c.attempts = defaultAttempts
	}
	if c.timeout == 0 {
		c.timeout = defaultTimeout
	}
	if c.limit == 0 {
		c.limit = defaultMaxResponse
	}
	api, err := httpapi.New(address, httpapi.Options{
		Op: "admin.New", TLS: o.TLS, AccessKey: o.Credentials.AccessKey, SecretKey: o.Credentials.SecretKey, Dialer: o.Dialer,
	})
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	c.api = api
	return c, nil
}

// Endpoint returns the broker's host:port, as it stands in errors.
func (c *Client) Endpoint() string { return c.api.Endpoint() }

// Close ends the calls under way, which fail with tidegate.ErrClosed as later ones do, and closes
// idle connections. It may be called several times and returns nil.
func (c *Client) Close() error {
	c.api.Close()
	return nil
}

// A repeat says when a request may be made again.
type repeat int

const (
	unlessAccepted repeat = iota // POST: only if the broker certainly did not carry it out
	always                       // a read, PUT or DELETE
)

// do makes a request and reads its response into out.
func (c *Client) do(ctx context.Context, r httpapi.Request, again repeat) error {
	r.Timeout, r.MaxResponse, r.Reads = c.timeout, c.limit, r.Method == "GET"
	err := c.api.Do(ctx, &r, func(a httpapi.Attempt) (time.Duration, bool) { return decide(a, again, c.attempts, c.backoff) })
	f, ok := errors.AsType[*httpapi.Failure](err)
	if !ok {
		return err // nil
	}
	if r.Method == "DELETE" && again == always && f.Earlier && errors.Is(f.Err, tidegate.ErrNotFound) {
		return nil
	}
	return &Error{Status: f.Status, Attempts: f.Attempts, Err: f.Err}
}

// decide returns whether a failed attempt is repeated, and after how long: the table in the package
// comment.
func decide(a httpapi.Attempt, again repeat, attempts int, policy backoff.Policy) (time.Duration, bool) {
	const throttled = 429
	switch {
	case a.Number >= attempts || !a.Curable:
		return 0, false
	case again == unlessAccepted && a.Connected && a.Status != throttled:
		return 0, false
	}
	return max(policy.Delay(a.Number-1), a.RetryAfter), true
}

// get, put and remove are do for the usual requests.
func get[T any](ctx context.Context, c *Client, op, subject, path string, query url.Values) (T, error) {
	var out T
	err := c.do(ctx, httpapi.Request{Op: op, Subject: subject, Method: "GET", Path: path, Query: query, Out: &out}, always)
	return out, err
}

func put[T any](ctx context.Context, c *Client, op, subject, path string, body any) (T, error) {
	var out T
	err := c.do(ctx, httpapi.Request{Op: op, Subject: subject, Method: "PUT", Path: path, Body: body, Out: &out}, always)
	return out, err
}

func post[T any](ctx context.Context, c *Client, op, subject, path string, body any) (T, error) {
	var out T
	err := c.do(ctx, httpapi.Request{Op: op, Subject: subject, Method: "POST", Path: path, Body: body, Out: &out}, unlessAccepted)
	return out, err
}

func (c *Client) remove(ctx context.Context, op, subject, path string) error {
	return c.do(ctx, httpapi.Request{Op: op, Subject: subject, Method: "DELETE", Path: path}, always)
}

// An Error is a failed call. It wraps a *tidegate.Error with the operation, the subject, the
// broker's code and text, the time that the broker asks to wait, and whether the call may have
// taken effect all the same.
type Error struct {
	Status   int // HTTP status of the last response; 0 if there was none
	Attempts int // that were made; 0 if ctx had ended before
	Err      *tidegate.Error
}

// Error returns the text of Err, the HTTP status and the number of attempts.
func (e *Error) Error() string {
	text := e.Err.Error()
	if e.Status != 0 {
		text += fmt.Sprintf(" (HTTP %d)", e.Status)
	}
	if e.Attempts > 1 {
		text += fmt.Sprintf(" after %d attempts", e.Attempts)
	}
	return text
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// escaped returns the path of something by its names.
func escaped(parts ...string) string { return httpapi.Path(parts...) }
