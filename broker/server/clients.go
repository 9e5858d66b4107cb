package server

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/routes"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/status"
)

// The sizes of a page of clients.
const (
	defaultClients = 100
	maxClients     = 1000
)

// listClients serves GET /v1/clients.
func (s *Server) listClients(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	query, err := clientQuery(r)
	if err != nil {
		return 0, nil, err
	}
	page := s.sessions.Page(&session.Listing{ClientQuery: query, Keyed: s.gate.Keyed()}, s.gate.Observer(r))
	return http.StatusOK, routes.Compact{Value: page}, nil
}

// clientQuery reads the query of a page of clients.
func clientQuery(r *http.Request) (out status.ClientQuery, err error) {
	q := routes.QueryOf(r, "match", "kind", "group", "topic", "language", "version", "outdated", "idle", "after", "limit")
	out = status.ClientQuery{
		Match: q.Text("match"), Kind: q.Text("kind"), Group: q.Text("group"), Topic: q.Text("topic"),
		Language: q.Text("language"), Version: q.Text("version"), Outdated: q.Yes("outdated"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	bad := func(name, format string, args ...any) (status.ClientQuery, error) {
		return out, refusal.New(tidegate.CodeBadRequest, name, fmt.Sprintf(format, args...))
	}
	idle := q.Text("idle")
	if q.Err != nil {
		return out, q.Err
	}
	if _, err := path.Match(out.Match, ""); err != nil {
		return bad("match", "match is %.100q: %v; give an ID with *, ? and [a-z]", out.Match, err)
	}
	if out.Kind != "" && !slices.Contains(session.Kinds, out.Kind) {
		return bad("kind", "kind is %.100q; give one of %s", out.Kind, strings.Join(session.Kinds, ", "))
	}
	if idle != "" {
		if out.Idle, err = time.ParseDuration(idle); err != nil || out.Idle < 0 {
			return bad("idle", "idle is %.100q; give a duration such as 30s", idle)
		}
	}
	if out.Limit < 0 || out.Limit > maxClients {
		return bad("limit", "limit is %d; give 1 to %d, or leave it out for %d", out.Limit, maxClients, defaultClients)
	}
	if out.Limit == 0 {
		out.Limit = defaultClients
	}
	return out, nil
}
