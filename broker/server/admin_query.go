package server

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

// A query reads the parameters of a request's URL. The first one that is
// wrong is its error.
type query struct {
	values url.Values
	err    error
}

// queryOf refuses parameters that are not known, and known ones that are repeated, but for lists.
func queryOf(r *http.Request, known ...string) *query {
	q := &query{values: r.URL.Query()}
	for name := range q.values {
		if !slices.Contains(known, name) {
			q.fail(name, "it is unknown; there are %s", strings.Join(known, ", "))
		}
	}
	return q
}

func (q *query) fail(name, format string, args ...any) {
	if q.err == nil {
		q.err = refusal.New(tidegate.CodeBadRequest, name, fmt.Sprintf("parameter %.100q: "+format, append([]any{name}, args...)...))
	}
}

func (q *query) text(name string) string {
	if len(q.values[name]) > 1 {
		q.fail(name, "it is given %d times: give it once", len(q.values[name]))
	}
	return q.values.Get(name)
}

// list takes a parameter that may be repeated.
func (q *query) list(name string) []string { return q.values[name] }

func (q *query) number(name string) int {
	s := q.text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		q.fail(name, "%.100q is not a whole number", s)
	}
	return n
}

func (q *query) yes(name string) bool {
	switch s := q.text(name); s {
	case "", "false":
		return false
	case "true":
		return true
	default:
		q.fail(name, "%.100q: give true or false", s)
	}
	return false
}

func (q *query) time(name string) time.Time {
	s := q.text(name)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		q.fail(name, "%.100q is not a time such as 2026-01-31T12:00:00Z", s)
	}
	return t
}
