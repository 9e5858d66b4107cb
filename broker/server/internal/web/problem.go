package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// A Problem is an error over HTTP (RFC 9457), with RocketMQ's code and seed
// 004's reply code besides; both are 0 for what has none.
type Problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Code      int    `json:"code,omitempty"`
	ReplyCode int    `json:"reply_code,omitempty"`

	// RetryAfter is the header Retry-After before it is rounded up to seconds.
	RetryAfter broker.Duration `json:"retry_after,omitempty"`

	// MaybeStored tells of a send that may have taken effect all the same.
	MaybeStored bool `json:"maybe_stored,omitempty"`

	// Results are those of a request about several things that all failed alike.
	Results any `json:"results,omitempty"`
}

// NotReady is why requests cannot be served now.
type NotReady struct{ Cause error }

func (e *NotReady) Error() string { return "not ready: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *NotReady) Unwrap() error { return e.Cause }

// withStatus is an error with an HTTP status that its code does not tell.
type withStatus struct {
	error
	status int
}

// Unwrap returns the error itself.
func (e *withStatus) Unwrap() error { return e.error }

// ProblemOf says an error over HTTP; of none there is nil.
func ProblemOf(err error) *Problem {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok || e.Code == 0 {
		e = &tidegate.Error{Code: tidegate.CodeInternalServerError, Err: err}
	}
	p := &Problem{Status: httpStatus(e.Code), Title: e.Code.String(), Detail: refusal.Text(e), Code: int(e.Code), ReplyCode: e.ReplyCode()}
	if _, ok := errors.AsType[*NotReady](err); ok || errors.Is(err, tidegate.ErrClosed) {
		p.Status = http.StatusServiceUnavailable
	}
	if own, ok := errors.AsType[*withStatus](err); ok {
		p.Status = own.status
	}
	p.Type, p.RetryAfter, p.MaybeStored = "about:blank", broker.Duration(max(e.RetryAfter, 0)), e.MaybeStored
	if p.Status == http.StatusTooManyRequests && p.RetryAfter == 0 {
		p.RetryAfter = broker.Duration(retryAfterUnknown)
	}
	if all, ok := errors.AsType[*allFailed](err); ok {
		p.Results = all.results
	}
	return p
}

// retryAfterUnknown is the wait of a throttled request where the broker cannot estimate
// one, for example while nobody consumes. It is short enough to notice a consumer that
// starts, and long enough that clients which do nothing but wait cost nothing. Over gRPC there
// is no push-back then: its clients have a backoff of their own.
const retryAfterUnknown = 10 * time.Second

// httpStatus returns the HTTP status of a code: its first three digits, where
// HTTP means the same by them.
func httpStatus(c tidegate.Code) int {
	switch s := int(c) / 100; s {
	case 400, 401, 402, 403, 404, 408, 413, 428, 429, 431, 500, 501, 504:
		return s
	case 505: // UNSUPPORTED and the like; HTTP's 505 is about HTTP itself
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}

// WriteProblem answers with p, whose type it fills in, and its title if there is none.
func WriteProblem(w http.ResponseWriter, p *Problem) {
	p.Type = "about:blank"
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(time.Duration(p.RetryAfter).Seconds()))))
	}
	WriteJSON(w, p.Status, "application/problem+json", p)
}

// WriteNotAllowed answers a method that a path does not take.
func WriteNotAllowed(w http.ResponseWriter, r *http.Request, methods []string) {
	if slices.Contains(methods, "GET") {
		methods = append(slices.Clone(methods), "HEAD")
	}
	slices.Sort(methods)
	list := strings.Join(methods, ", ")
	w.Header().Set("Allow", list)
	WriteProblem(w, &Problem{Status: http.StatusMethodNotAllowed, Detail: r.URL.Path + " takes " + list + ", not " + r.Method})
}

// WriteJSON answers with v, for people to read.
func WriteJSON(w http.ResponseWriter, status int, contentType string, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // people read it, and browsers are told that it is no HTML
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil { // only a programming mistake
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // it fails only if the client has gone
}
