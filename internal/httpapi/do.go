package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A Request is one operation of the API.
type Request struct {
	Op, Subject string // for errors
	Method      string
	Path        string // escaped, from the root of the API: "/v1/topics"
	Query       url.Values
	Body        any    // sent as JSON; nil: no body
	IfMatch     string // an ETag with its quotes; empty: the request is unconditional

	// Out receives the JSON of a successful response; a *[]byte receives the body unchanged. Nil:
	// the body is ignored.
	Out any

	// Timeout bounds each attempt, in addition to the caller's ctx. Zero means no bound.
	Timeout time.Duration

	// MaxResponse bounds the body of a response, in bytes.
	MaxResponse int64

	// WaitOut allows waits that end after the deadline of ctx.
	WaitOut bool

	// Reads reports that the request changes nothing. MaybeStored is then false in the error of
	// each of its failures.
	Reads bool
}

// An Attempt is a failed attempt, as a decision to repeat it sees it.
type Attempt struct {
	Number int // from 1

	// Connected reports that the attempt had a connection. If not, the broker has certainly
	// not seen it.
	Connected bool

	// Throttled reports a complete response with the status 429, or 530 as a gateway may send it.
	// The broker has not carried out the request.
	Throttled bool

	// Curable reports that another attempt may succeed, as go-retryablehttp judges the status,
	// and the error of an attempt without a response.
	Curable bool

	// RetryAfter is how long the broker asks to wait; 0 if it does not.
	RetryAfter time.Duration
}

// A Decision returns whether a failed attempt is repeated, and after how long.
type Decision func(Attempt) (wait time.Duration, again bool)

// Do sends a request, and sends it again as decide requires. Unless r.WaitOut is set, it starts no
// wait that would end after the deadline of ctx. The error is a *[Failure]: that of the last
// attempt, or the cause of ctx together with it.
func (c *Client) Do(ctx context.Context, r *Request, decide Decision) error {
	k := &call{client: c, request: r, decide: decide}
	if err := k.do(ctx); err != nil {
		return err
	}
	return nil
}

// A call is one request with all of its attempts.
type call struct {
	client  *Client
	request *Request
	decide  Decision

	attempts  int
	connected bool     // the last attempt had a connection
	maybe     bool     // an attempt without a usable response may have taken effect
	last      *Failure // of the last attempt; nil if it succeeded
	wait      time.Duration
}

func (k *call) do(parent context.Context) *Failure {
	c, r := k.client, k.request
	ctx, stop := c.within(parent)
	defer stop()
	if ctx.Err() != nil {
		return k.ended(ctx)
	}
	if !legal(r.Path) {
		return k.fail(0, &tidegate.Error{Code: tidegate.CodeBadRequest, Message: "the name is empty, or consists of dots, and cannot be part of a URL; give another one"})
	}
	var body any
	if r.Body != nil {
		text, err := json.Marshal(r.Body)
		if err != nil {
			return k.fail(0, &tidegate.Error{Code: tidegate.CodeBadRequest, Message: "the request cannot be written as JSON", Err: err})
		}
		body = text
	}
	req, err := retryablehttp.NewRequestWithContext(ctx, r.Method, c.base.String()+r.Path+query(r.Query), body)
	if err != nil {
		return k.fail(0, &tidegate.Error{Code: tidegate.CodeBadRequest, Err: err})
	}
	c.header(req.Header, r.Body != nil)
	if r.IfMatch != "" {
		req.Header.Set("If-Match", r.IfMatch)
	}
	lib := retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport: k,
			// A redirected POST would become a GET, and credentials would go elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		RetryMax:     math.MaxInt,
		CheckRetry:   k.check,
		Backoff:      func(time.Duration, time.Duration, int, *http.Response) time.Duration { return k.wait },
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	resp, err := lib.Do(req)
	if resp != nil {
		defer resp.Body.Close()
	}
	switch {
	case err == nil && k.last != nil: // a response that is no success, and is not to be repeated
		return k.last
	case err == nil:
		return k.decode(resp)
	case ctx.Err() != nil:
		return k.ended(ctx)
	case k.last != nil:
		return k.last
	}
	return k.fail(0, &tidegate.Error{Code: tidegate.CodeBadRequest, Err: err}) // found by the library before the first attempt
}

// Path returns the path of something in the API by its names, which it escapes.
func Path(parts ...string) string {
	var path strings.Builder
	path.WriteString("/v1")
	for _, p := range parts {
		path.WriteString("/" + url.PathEscape(p))
	}
	return path.String()
}

// legal reports whether servers leave a path as it is: they resolve empty words and dots.
func legal(path string) bool {
	return !slices.ContainsFunc(strings.Split(path, "/")[1:], func(word string) bool { return word == "" || word == "." || word == ".." })
}

func query(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// A timeoutError is the cause of an attempt that ended at Request.Timeout.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("no response within %v", e.after) }

// errTooLarge is the error of a response above MaxResponse.
var errTooLarge = errors.New("the response is too large")

// RoundTrip makes one attempt and reads the whole response, so that a response which breaks off is
// a failed attempt. It implements http.RoundTripper for the library.
func (k *call) RoundTrip(req *http.Request) (*http.Response, error) {
	k.attempts++
	k.connected = false
	ctx, cancel := req.Context(), context.CancelFunc(func() {})
	if d := k.request.Timeout; d > 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, d, &timeoutError{d})
	}
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// net/http looks for another connection only if it wrote nothing to the one that it had, or
		// the request is a read.
		GetConn: func(string) { k.connected = false },
		GotConn: func(httptrace.GotConnInfo) { k.connected = true },
	})
	resp, err := k.client.network.RoundTrip(k.client.signed(req.WithContext(ctx)))
	if err != nil {
		return nil, because(ctx, err)
	}
	defer resp.Body.Close()
	limit := k.request.MaxResponse
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, because(ctx, fmt.Errorf("reading the response: %w", err))
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%w: it exceeds the limit of %d bytes", errTooLarge, limit)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// silence is the time without a line after which Lines treats a connection as lost. The broker sends
// an empty line every 20 s.
const silence = time.Minute

// maxLine bounds a line of Lines, in bytes.
const maxLine = 64 << 10

// errSilent is the cause of the end of a stream without lines.
var errSilent = fmt.Errorf("no line came for %v", silence)

// Lines makes one attempt of a GET request whose response is a stream of lines, and calls each with
// every line that is not empty, until the response or ctx ends or each returns an error. The error
// is a *[Failure], that of each, or the cause of ctx; it is nil if the server has ended the stream.
func (c *Client) Lines(ctx context.Context, r *Request, each func(line []byte) error) error {
	k := &call{client: c, request: r, attempts: 1}
	ctx, stop := c.within(ctx)
	defer stop()
	if !legal(r.Path) {
		return k.fail(0, &tidegate.Error{Code: tidegate.CodeBadRequest, Message: "the name is empty, or consists of dots, and cannot be part of a URL; give another one"})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { k.connected = true }})
	req, err := http.NewRequestWithContext(traced, http.MethodGet, c.base.String()+r.Path+query(r.Query), nil)
	if err != nil {
		return k.fail(0, &tidegate.Error{Code: tidegate.CodeBadRequest, Err: err})
	}
	c.header(req.Header, false)
	resp, err := c.network.RoundTrip(c.signed(req))
	if err != nil {
		return k.noResponse(because(ctx, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, err := io.ReadAll(io.LimitReader(resp.Body, r.MaxResponse))
		if err != nil {
			return k.noResponse(because(ctx, err))
		}
		return k.refused(resp, text)
	}
	c.worked.Store(true)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		watchdog.Reset(silence)
		if len(lines.Bytes()) == 0 {
			continue
		}
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return k.noResponse(because(ctx, err))
	}
	return nil
}

// because adds why an attempt's context ended to the error that came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// check is the library's CheckRetry.
func (k *call) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	k.last = k.failure(resp, err)
	if k.last == nil {
		return false, nil
	}
	k.maybe = k.maybe || k.last.Err.MaybeStored
	if ctx.Err() != nil {
		return false, nil //nolint:nilerr // ended reports it, with its cause
	}
	curable, _ := retryablehttp.ErrorPropagatedRetryPolicy(ctx, resp, err)
	switch {
	case errors.Is(err, errTooLarge), errors.Is(err, errProxy), err != nil && k.otherProtocol(err):
		curable = false
	case err != nil && isTLS(err):
		curable = k.client.worked.Load() // the certificate has expired, or is being replaced
	}
	a := Attempt{Number: k.attempts, Connected: k.connected, Curable: curable, RetryAfter: max(k.last.Err.RetryAfter, 0)}
	a.Throttled = resp != nil && err == nil && throttled(resp.StatusCode)
	wait, again := k.decide(a)
	if at, ok := ctx.Deadline(); ok && again && !k.request.WaitOut && time.Until(at) <= wait {
		k.last.Err.Err = tooLate(k.last.Err.Err, wait, time.Until(at))
		again = false
	}
	k.wait = wait
	return again, nil
}

// tooLate adds to the error of the last attempt, which may be nil, why there is no other one.
func tooLate(last error, wait, left time.Duration) error {
	const form = "the next attempt in %v would be after the deadline, which is in %v"
	wait, left = wait.Round(time.Millisecond), left.Round(time.Millisecond)
	if last == nil {
		return fmt.Errorf(form, wait, left)
	}
	return fmt.Errorf("%w; "+form, last, wait, left)
}

// decode reads a successful response.
func (k *call) decode(resp *http.Response) *Failure {
	if k.request.Out == nil {
		return nil
	}
	text, err := io.ReadAll(resp.Body)
	if raw, ok := k.request.Out.(*[]byte); ok && err == nil {
		*raw = text
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, k.request.Out)
	}
	if err != nil {
		f := k.fail(resp.StatusCode, &tidegate.Error{
			Code: protocol.CodeInternalError, MaybeStored: !k.request.Reads, Err: err,
			Message: "the response is not from a tidegate broker; check the address: " + strconv.Quote(short(string(text))),
		})
		f.Unreadable = true
		return f
	}
	return nil
}
