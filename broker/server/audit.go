package server

import (
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/routes"
	"github.com/tidegate/tidegate/broker/status"
)

// audited are the operations over HTTP that change settings, copy data, or remove or move messages
// that are not the client's. Each call of them that the gate has admitted is a line of the log and
// a record of GET /v1/audit, except a dry run, which changes nothing. A logout is one if it ends a
// session.
var audited = map[string]bool{
	"putTopic": true, "deleteTopic": true, "purgeTopic": true,
	"putGroup": true, "patchGroup": true, "deleteGroup": true, "rewindGroup": true, "redriveParked": true,
	"purgeDeadLetters": true, "redriveDeadLetters": true,
	"putThrottle": true, "patchThrottle": true, "postSnapshot": true,
	opLogin:              true,
	"putAddressSettings": true, "deleteAddressSettings": true,
}

// audit logs and records an operation with its principal, subject and result. The record of an
// edited redrive has the ID of the new message in its query, as that of a purge by a client that
// sent the message itself.
func (s *Server) audit(r *http.Request, op string, body any, err error) {
	subject, result := "broker", "ok"
	for _, part := range []string{"topic", "group", "match"} {
		if name := r.PathValue(part); name != "" {
			subject = name
		}
	}
	if err != nil {
		result = err.Error()
	}
	query := r.URL.RawQuery
	if done, ok := body.(status.DeadLetterRedrive); ok && done.SentAs != "" {
		query = url.Values{"sent_as": {done.SentAs}}.Encode()
	}
	query = query[:min(len(query), 200)]
	args := []any{"operation", op, "subject", subject, "key", auth.NameOf(r), "peer", r.RemoteAddr, "result", result}
	if query != "" {
		args = append(args, "query", query)
	}
	s.records.Add(&status.AuditRecord{
		Time: time.Now(), Key: auth.NameOf(r), Peer: r.RemoteAddr, Operation: op, Subject: subject, Query: query, Result: result,
	})
	s.log.Log(r.Context(), slog.LevelInfo, "audit", args...)
}

// listAudit serves GET /v1/audit.
func (s *Server) listAudit(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := routes.QueryOf(r, "since", "key", "subject", "operation", "after", "limit")
	query := status.AuditQuery{
		Since: q.Time("since"), Key: q.Text("key"), Subject: q.Text("subject"), Operation: q.Text("operation"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := s.records.Page(&query)
	return http.StatusOK, page, err
}
