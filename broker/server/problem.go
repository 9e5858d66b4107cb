package server

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/tidegate/tidegate"
)

// A problem is an error of the HTTP admin (RFC 9457), with RocketMQ's code and
// seed 004's reply code besides; both are 0 for what has none.
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Code      int    `json:"code,omitempty"`
	ReplyCode int    `json:"reply_code,omitempty"`

	retryAfter int // seconds; 0: not said
}

// notReady is why requests cannot be served now.
type notReady struct{ cause error }

func (e *notReady) Error() string { return "not ready: " + e.cause.Error() }

func (e *notReady) Unwrap() error { return e.cause }

func problemOf(err error) problem {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok || e.Code == 0 {
		e = &tidegate.Error{Code: tidegate.CodeInternalServerError, Err: err}
	}
	p := problem{Status: httpStatus(e.Code), Title: e.Code.String(), Detail: textOf(e), Code: int(e.Code), ReplyCode: e.ReplyCode()}
	if _, ok := errors.AsType[*notReady](err); ok || errors.Is(err, tidegate.ErrClosed) {
		p.Status = http.StatusServiceUnavailable
	}
	if e.RetryAfter > 0 {
		p.retryAfter = int(math.Ceil(e.RetryAfter.Seconds()))
	}
	return p
}

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

func writeProblem(w http.ResponseWriter, p problem) {
	p.Type = "about:blank"
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

func writeNotAllowed(w http.ResponseWriter, r *http.Request, methods map[string]endpoint) {
	var allowed []string
	for m := range methods {
		allowed = append(allowed, m)
		if m == "GET" {
			allowed = append(allowed, "HEAD")
		}
	}
	slices.Sort(allowed)
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	writeProblem(w, problem{Status: http.StatusMethodNotAllowed, Detail: r.URL.Path + " takes " + list + ", not " + r.Method})
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil { // only a programming mistake
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // it fails only if the client has gone
}

// jsonKeys returns the keys of a struct in JSON, for people.
func jsonKeys[T any]() string {
	var keys []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && key != "-" {
			keys = append(keys, key)
		}
	}
	return strings.Join(keys, ", ")
}
