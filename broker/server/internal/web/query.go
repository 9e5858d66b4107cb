package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// A Query reads the parameters of a request's URL. One that is missing has its
// zero value.
type Query struct {
	Err error // of the first parameter that is wrong, nil if none is

	values url.Values
}

// QueryOf rejects unknown parameters, and repeated ones except for lists.
func QueryOf(r *http.Request, known ...string) *Query {
	values, err := Values(r)
	q := &Query{values: values, Err: err}
	for name := range q.values {
		if !slices.Contains(known, name) {
			q.fail(name, "it is unknown; the parameters are %s", strings.Join(known, ", "))
		}
	}
	return q
}

// Values returns all parameters of a request's URL. It rejects malformed ones, which url.URL.Query
// drops.
func Values(r *http.Request) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refusal.New(tidegate.CodeBadRequest, "query",
			fmt.Sprintf("the query %.200q is malformed (%v); in a value, write %% as %%25 and ; as %%3B", r.URL.RawQuery, err))
	}
	return values, nil
}

func (q *Query) fail(name, format string, args ...any) {
	if q.Err == nil {
		q.Err = refusal.New(tidegate.CodeBadRequest, name, fmt.Sprintf("parameter %.100q: "+format, append([]any{name}, args...)...))
	}
}

// Text takes a parameter as it is.
func (q *Query) Text(name string) string {
	if len(q.values[name]) > 1 {
		q.fail(name, "it is given %d times; give it once", len(q.values[name]))
	}
	return q.values.Get(name)
}

// List takes a parameter that may be repeated.
func (q *Query) List(name string) []string { return q.values[name] }

// Number takes a whole number.
func (q *Query) Number(name string) int {
	s := q.Text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		q.fail(name, "%.100q is not a whole number", s)
	}
	return n
}

// Yes takes true or false.
func (q *Query) Yes(name string) bool {
	switch s := q.Text(name); s {
	case "", "false":
		return false
	case "true":
		return true
	default:
		q.fail(name, "it is %.100q; give true or false", s)
	}
	return false
}

// Time takes a time as in RFC 3339.
func (q *Query) Time(name string) time.Time {
	s := q.Text(name)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		q.fail(name, "%.100q is not a time; give one such as 2026-01-31T12:00:00Z", s)
	}
	return t
}
