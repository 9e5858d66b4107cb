package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A Failure is a failed request.
type Failure struct {
	Status   int // of the last response; 0 if there was none
	Attempts int

	// Unreadable reports a response that cannot be used, because it is too large, incomplete or no
	// JSON.
	Unreadable bool

	// FromBroker reports that a tidegate broker sent the last response, not a proxy before it.
	FromBroker bool

	// Earlier reports that an attempt before the last one may have taken effect.
	Earlier bool

	// Results are the results, as JSON, of a request about several things that failed in the same
	// way.
	Results json.RawMessage

	Err *tidegate.Error
}

// Error returns the text of Err.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns Err.
func (f *Failure) Unwrap() error { return f.Err }

// A Problem is an error as the broker writes it (RFC 9457).
type Problem struct {
	Title       string          `json:"title"`
	Detail      string          `json:"detail"`
	Code        int             `json:"code"`
	RetryAfter  string          `json:"retry_after"`
	MaybeStored bool            `json:"maybe_stored"`
	Results     json.RawMessage `json:"results"`
}

// Error returns the problem as an error about op and subject at an endpoint.
func (p *Problem) Error(op, subject, endpoint string) *tidegate.Error {
	e := &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Code: tidegate.Code(p.Code), Message: short(p.Detail)}
	e.RetryAfter, _ = time.ParseDuration(p.RetryAfter)
	e.MaybeStored = p.MaybeStored || mayHaveTakenEffect(e.Code)
	return e
}

// mayHaveTakenEffect reports whether a request that failed with the code may have changed
// something. A broker with an internal error may have written the change to disk already.
func mayHaveTakenEffect(c tidegate.Code) bool {
	switch c {
	case tidegate.CodeNotImplemented, protocol.CodeUnsupported, protocol.CodeVersionUnsupported, protocol.CodeVerifyFIFOMessageUnsupported:
		return false
	}
	return c >= protocol.CodeInternalError && c < protocol.CodeFailedToConsumeMessage
}

// fail completes an error of this call.
func (k *call) fail(status int, e *tidegate.Error) *Failure {
	e.Op, e.Subject, e.Endpoint = k.request.Op, k.request.Subject, k.client.endpoint
	if k.request.Reads {
		e.MaybeStored = false
	}
	return &Failure{Status: status, Attempts: k.attempts, Earlier: k.maybe, Err: e}
}

// ended returns the failure of a call after the end of ctx. It includes the failure of the last
// attempt.
func (k *call) ended(ctx context.Context) *Failure {
	err, status := context.Cause(ctx), 0
	if k.last != nil {
		status = k.last.Status
		if !errors.Is(k.last.Err, err) {
			err = fmt.Errorf("%w; the last attempt: %w", err, k.last.Err)
		}
	}
	notConnected := k.last != nil && k.last.Err.NotConnected && !k.client.Closed()
	return k.fail(status, &tidegate.Error{Err: err, MaybeStored: k.maybe, NotConnected: notConnected})
}

// failure returns the failure of an attempt; nil if the attempt succeeded. err is a *url.Error. Its
// URL is dropped, because it repeats operation and endpoint.
func (k *call) failure(resp *http.Response, err error) *Failure {
	if err != nil {
		if outer, ok := errors.AsType[*url.Error](err); ok {
			err = outer.Err
		}
		return k.noResponse(err)
	}
	if resp.StatusCode/100 == 2 {
		k.client.worked.Store(true)
		return nil
	}
	text, readErr := io.ReadAll(resp.Body)
	if readErr != nil { // it is in memory
		return k.noResponse(readErr)
	}
	return k.refused(resp, text)
}

// noResponse returns the failure of an attempt without a complete response.
func (k *call) noResponse(err error) *Failure {
	e := &tidegate.Error{Err: fmt.Errorf("%w: %w", tidegate.ErrUnavailable, err), MaybeStored: k.connected, NotConnected: k.unreached(err)}
	f := k.fail(0, e)
	switch {
	case errors.Is(err, errTooLarge):
		f.Unreadable = true
		e.Code, e.Err = protocol.CodePayloadTooLarge, err
	case isTLS(err) && k.client.worked.Load():
		e.MaybeStored = false
		e.Message = "the connection cannot be encrypted; check the certificate (the address has worked before, so this counts as an outage)"
	case isTLS(err):
		e.Code, e.MaybeStored = tidegate.CodeIllegalAccessPoint, false
		e.Message, e.Err = "the connection cannot be encrypted; check the address, Options.TLS and the certificate", err
	case k.connected && errors.Is(err, io.ErrUnexpectedEOF):
		f.Unreadable = true
	case k.otherProtocol(err):
		e.Code, e.MaybeStored = tidegate.CodeIllegalAccessPoint, false
		e.Message, e.Err = "the response is not HTTP/1.1; give the address for HTTP, not the one for gRPC", nil
		if strings.Contains(err.Error(), tlsAlert) {
			e.Message = "the server expects TLS on this port; give its address as an https URL"
		}
	case k.connected && malformed(err):
		e.Message = "the response is not HTTP/1.1 (the address has worked before, so this counts as an outage)"
	}
	return f
}

// tlsAlert are the first bytes of a TLS alert, as net/http quotes them.
const tlsAlert = `"\x15\x03`

// malformed reports whether the response is not one of HTTP/1; net/http exports no type for it.
func malformed(err error) bool { return strings.Contains(err.Error(), "malformed HTTP response") }

// otherProtocol reports whether an address that has never worked speaks another protocol. Another
// attempt does not cure it.
func (k *call) otherProtocol(err error) bool {
	return k.connected && malformed(err) && !k.client.worked.Load()
}

// unreached reports whether the attempt failed because it had no connection. It is false for faults
// that another attempt to connect does not cure: of the credentials for a proxy and, at an address
// that has never worked, of TLS and of the host name.
func (k *call) unreached(err error) bool {
	if errors.Is(err, errProxy) {
		return false
	}
	if k.client.worked.Load() {
		return !k.connected || isTLS(err)
	}
	return !k.connected && !isTLS(err) && !k.client.unnamed.Load()
}

// refused returns the error of an attempt that got an error response.
func (k *call) refused(resp *http.Response, text []byte) *Failure {
	f := k.read(resp, text)
	f.Err.Lapsed = f.Err.Is(tidegate.ErrUnauthorized) && k.client.worked.Load()
	return f
}

// read reads an error response.
func (k *call) read(resp *http.Response, text []byte) *Failure {
	var p Problem
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind == "application/problem+json" && json.Unmarshal(text, &p) == nil && (p.Code != 0 || p.Detail != "") {
		e := p.Error("", "", "")
		if e.RetryAfter == 0 {
			e.RetryAfter = retryAfter(resp.Header)
		}
		if e.Code == 0 { // nothing at this path, or not with this method
			e.Code = tidegate.CodeNotImplemented
		}
		f := k.fail(resp.StatusCode, e)
		f.Results, f.FromBroker = p.Results, true
		return f
	}
	return k.fail(resp.StatusCode, foreign(resp, text))
}

// foreign returns the error for a response from a server or proxy that is not a tidegate broker.
func foreign(resp *http.Response, text []byte) *tidegate.Error {
	e := &tidegate.Error{Code: protocol.CodeInternalError, RetryAfter: retryAfter(resp.Header)}
	e.Message = fmt.Sprintf("HTTP status %s, and the response is not from a tidegate broker", resp.Status)
	if to := resp.Header.Get("Location"); to != "" && resp.StatusCode/100 == 3 {
		e.Message += fmt.Sprintf("; it redirects to %.200q; give that address", to)
	} else if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/grpc") {
		e.Message += "; give the address for HTTP, not the one for gRPC"
	} else if resp.StatusCode == http.StatusBadRequest && bytes.Contains(text, []byte("HTTP request to an HTTPS server")) { // of Go's servers
		e.Code, e.Message = tidegate.CodeIllegalAccessPoint, "the server expects TLS on this port; give its address as an https URL"
	} else if s := short(string(text)); s != "" {
		e.Message += ": " + strconv.Quote(s)
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		e.Code = tidegate.CodeUnauthorized
	case http.StatusForbidden:
		e.Code = tidegate.CodeForbidden
	case http.StatusRequestEntityTooLarge:
		e.Code = protocol.CodePayloadTooLarge
	case http.StatusTooManyRequests, statusReply:
		e.Code = tidegate.CodeTooManyRequests
	case http.StatusGatewayTimeout:
		e.Code = protocol.CodeProxyTimeout
	}
	e.MaybeStored = resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented && resp.StatusCode != statusReply
	return e
}

// statusReply is the reply code for throttling (RocketMQ: sending retry and throttling) as an HTTP
// status. A tidegate broker sends 429; a gateway in front of another server may send this status.
const statusReply = 530

func throttled(status int) bool {
	return status == http.StatusTooManyRequests || status == statusReply
}

// retryAfter reads the header Retry-After in seconds or, of proxies, as a date.
func retryAfter(h http.Header) time.Duration {
	const most = 24 * time.Hour
	v := h.Get("Retry-After")
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(most/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(time.Until(at), 0), most)
	}
	return 0
}

// A Duration is a time.Duration in the JSON form "1m30s".
type Duration time.Duration

// MarshalJSON returns the quoted text of d.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON parses a JSON string with time.ParseDuration.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	*d = Duration(v)
	return err
}

// maxText bounds a server's text in an error, in bytes.
const maxText = 512

// short returns text bounded to maxText.
func short(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "\uFFFD")
	if len(text) <= maxText {
		return text
	}
	cut := maxText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
