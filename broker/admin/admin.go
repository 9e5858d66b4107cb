// Package admin is a typed client of the administrative HTTP API of a tidegate broker: topics,
// consumer groups, address settings, throttles, positions, parked message groups and dead letters.
// GET /v1/openapi.yaml of a broker describes the API. To send and receive over HTTP, use package
// transport/rest.
//
//	c, err := admin.New("http://127.0.0.1:8082", admin.Options{})
//	if err != nil { ... }
//	defer c.Close()
//	topic, err := c.PutTopic(ctx, "orders", settings.Topic{Queues: 4})
//
// # Retries
//
// github.com/hashicorp/go-retryablehttp repeats requests after the waits of [Options].Backoff, and
// never before the time in Retry-After. If a wait would end after the deadline of the caller's ctx,
// the call returns the error at once.
//
//   - An attempt without a connection, or with status 429 or 530 (reply code 530), had no effect:
//     every request is repeated.
//   - An attempt without a complete response, or with status 500, 502, 503 or 504: reads, PUT,
//     PATCH and DELETE are repeated. A POST and a purge of dead letters are not: the broker may
//     have carried them out. Nor are a PUT and a PATCH of [Client.IfRevision].
//   - Any other status, and a certificate that is not trusted: the error is returned.
//
// If the repetition of a DELETE finds nothing, and an earlier attempt may have deleted the object,
// the call succeeds.
//
// # Errors
//
// The error of every method is an [*Error], with the HTTP status and the broker's code and
// text. It matches the sentinels of package tidegate by its code, for example
// tidegate.ErrNotFound, and wraps context.Cause(ctx) if ctx ended.
//
// The package links neither the storage engine nor gRPC.
package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// Options configure a [Client]. The zero value is a client without credentials.
type Options struct {
	// Credentials authenticate every request. Zero means none.
	Credentials tidegate.Credentials

	// TLS configures connections to an https address and can have a client certificate. Default:
	// Go's configuration.
	TLS *tls.Config

	// Backoff is the wait after a failed attempt: Delay(0) after the first. If the broker requests
	// a longer wait, that one applies. Default: backoff.Default() with a Max of 10 s.
	Backoff backoff.Policy

	// MaxAttempts bounds the attempts of one call, including the first. Default: 5.
	MaxAttempts int

	// AttemptTimeout bounds each attempt, including its response. Default: 1 minute.
	AttemptTimeout time.Duration

	// MaxResponse bounds the body of a response, in bytes. A larger response is an error. Default:
	// 64 MiB.
	MaxResponse int64

	// Dialer creates connections, for example in an in-memory network; addr is host:port. Default:
	// TCP, through the proxy of the environment.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
}

const (
	defaultAttempts    = 5
	defaultTimeout     = time.Minute
	defaultMaxResponse = 64 << 20
	defaultMaxBackoff  = 10 * time.Second
)

// A Client administers one broker. Several goroutines may share it.
type Client struct {
	api      *httpapi.Client
	backoff  backoff.Policy
	attempts int
	timeout  time.Duration
	limit    int64
	ifMatch  string // of PUT, PATCH and DELETE; empty: none
}

// New returns a client of the broker at an address. The address is an http or https URL, or
// host:port for http. New does not connect. The error names all invalid options.
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
		Op: "admin.New", TLS: o.TLS, Credentials: o.Credentials, Dialer: o.Dialer,
	})
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	c.api = api
	return c, nil
}

// Endpoint returns the broker's host:port, as errors show it.
func (c *Client) Endpoint() string { return c.api.Endpoint() }

// Close ends the calls under way and closes idle connections. These calls and later ones fail with
// tidegate.ErrClosed. Close may be called several times and returns nil.
func (c *Client) Close() error {
	c.api.Close()
	return nil
}

// IfRevision returns a client whose changes of a topic, a consumer group, address settings or the
// limits of the broker only happen if the settings still have a revision, for example that of
// status.Topic. Otherwise they return an [Error] with Status 412. Other changes fail with
// tidegate.ErrInvalid; reads are not affected. A PUT or PATCH whose response was lost is not
// repeated, because the first attempt may have changed the revision. An empty revision matches
// nothing. The client shares the connections of c, and Close closes both.
func (c *Client) IfRevision(revision string) *Client {
	conditional := *c
	conditional.ifMatch = `"` + revision + `"`
	return &conditional
}

// A repeat is the condition for repeating a request.
type repeat int

const (
	unlessAccepted repeat = iota // POST: only if the broker certainly did not execute it
	always                       // a read, PUT, PATCH or DELETE
)

// do sends a request and decodes its response into out.
func (c *Client) do(ctx context.Context, r httpapi.Request, again repeat) error {
	r.Timeout, r.MaxResponse, r.Reads = c.timeout, c.limit, r.Method == "GET"
	if !r.Reads {
		r.IfMatch = c.ifMatch
	}
	if r.IfMatch != "" && r.Method != "DELETE" {
		again = unlessAccepted
	}
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

// decide reports whether a failed attempt is repeated, and after which wait. The package comment
// has the rules.
func decide(a httpapi.Attempt, again repeat, attempts int, policy backoff.Policy) (time.Duration, bool) {
	switch {
	case a.Number >= attempts || !a.Curable:
		return 0, false
	case again == unlessAccepted && a.Connected && !a.Throttled:
		return 0, false
	}
	return max(policy.Delay(a.Number-1), a.RetryAfter), true
}

// get, put and remove call do for the usual requests.
func get[T any](ctx context.Context, c *Client, op, subject, path string, query url.Values) (T, error) {
	var out T
	err := c.do(ctx, httpapi.Request{Op: op, Subject: subject, Method: "GET", Path: path, Query: query, Out: &out}, always)
	return out, err
}

func put[T any](ctx context.Context, c *Client, op, subject, path string, body any) (T, error) {
	return call[T](ctx, c, "PUT", op, subject, path, body)
}

// call sends a request that can be repeated.
func call[T any](ctx context.Context, c *Client, method, op, subject, path string, body any) (T, error) {
	var out T
	err := c.do(ctx, httpapi.Request{Op: op, Subject: subject, Method: method, Path: path, Body: body, Out: &out}, always)
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
// broker's code and text, and the wait that the broker requests. MaybeStored of that error reports
// whether the call may have taken effect.
type Error struct {
	Status   int // HTTP status of the last response; 0 if there was none
	Attempts int // 0 if ctx had ended before the first
	Err      *tidegate.Error
}

// Error returns the text of Err, the HTTP status and the number of attempts.
func (e *Error) Error() string {
	var notes []string
	if e.Status != 0 {
		notes = append(notes, fmt.Sprintf("HTTP %d", e.Status))
	}
	if e.Attempts > 1 {
		notes = append(notes, fmt.Sprintf("after %d attempts", e.Attempts))
	}
	if len(notes) == 0 {
		return e.Err.Error()
	}
	return e.Err.Error() + " (" + strings.Join(notes, ", ") + ")"
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// escaped joins names to an escaped path.
func escaped(parts ...string) string { return httpapi.Path(parts...) }
