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
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
)

// A Problem is an error over HTTP (RFC 9457), with RocketMQ's code and the reply code of the
// remoting protocol. Both are 0 for errors without a code.
type Problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Code      int    `json:"code,omitempty"`
	ReplyCode int    `json:"reply_code,omitempty"`

	// RetryAfter is the header Retry-After before it is rounded up to seconds.
	RetryAfter settings.Duration `json:"retry_after,omitempty"`

	// MaybeStored is set if a failed send may have taken effect.
	MaybeStored bool `json:"maybe_stored,omitempty"`

	// Results are those of a request about several things that all failed alike.
	Results any `json:"results,omitempty"`
}

// NotReady is why requests cannot be served now.
type NotReady struct{ Cause error }

func (e *NotReady) Error() string { return "not ready: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *NotReady) Unwrap() error { return e.Cause }

// withStatus is an error with an HTTP status that does not follow from its code.
type withStatus struct {
	error
	status int
}

// Unwrap returns the error itself.
func (e *withStatus) Unwrap() error { return e.error }

// ProblemOf converts an error. It returns nil for nil.
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
	p.Type, p.RetryAfter, p.MaybeStored = "about:blank", settings.Duration(max(e.RetryAfter, 0)), e.MaybeStored
	if p.Status == http.StatusTooManyRequests && p.RetryAfter == 0 {
		p.RetryAfter = settings.Duration(retryAfterUnknown)
	}
	if all, ok := errors.AsType[*allFailed](err); ok {
		p.Results = all.results
	}
	return p
}

// retryAfterUnknown is the delay of a throttled request if the broker has no estimate, for example
// without consumers. It is short enough to notice a consumer that starts, and long enough that
// waiting clients cost nothing. Over gRPC there is no push-back then, because its clients have a
// backoff of their own.
const retryAfterUnknown = 10 * time.Second

// httpStatus returns the HTTP status of a code: its first three digits, where
// HTTP means the same by them.
func httpStatus(c tidegate.Code) int {
	switch s := int(c) / 100; s {
	case 400, 401, 402, 403, 404, 408, 413, 429, 431, 500, 501, 504:
		return s
	case 428: // PRECONDITION_FAILED; HTTP's 428 is about a missing condition
		return http.StatusPreconditionFailed
	case 505: // UNSUPPORTED and the like; HTTP's 505 is about HTTP itself
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}

// WriteProblem responds with p. It sets the type, and the title if there is none.
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

// WriteNotAllowed responds to a method that a path does not accept.
func WriteNotAllowed(w http.ResponseWriter, r *http.Request, methods []string) {
	if slices.Contains(methods, "GET") {
		methods = append(slices.Clone(methods), "HEAD")
	}
	slices.Sort(methods)
	list := strings.Join(methods, ", ")
	w.Header().Set("Allow", list)
	WriteProblem(w, &Problem{Status: http.StatusMethodNotAllowed, Detail: r.URL.Path + " accepts " + list + ", not " + r.Method})
}

// Compact is a value whose JSON is written without indentation, because it has many small parts.
type Compact struct{ Value any }

// WriteJSON writes v as the response, indented for people unless it is Compact.
func WriteJSON(w http.ResponseWriter, status int, contentType string, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // for people; the header prevents browsers from treating it as HTML
	if c, ok := v.(Compact); ok {
		v = c.Value
	} else {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil { // only a programming mistake
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // it fails only if the client has gone
}
