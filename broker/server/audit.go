package server

import (
	"log/slog"
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/gate"
)

// audited are the operations over HTTP that change settings, copy data, or remove or move messages
// that are not the client's. Each call of them that the gate has admitted is a line of the log.
var audited = map[string]bool{
	"putTopic": true, "deleteTopic": true, "purgeTopic": true,
	"putGroup": true, "patchGroup": true, "deleteGroup": true, "rewindGroup": true, "redriveParked": true,
	"purgeDeadLetters": true, "redriveDeadLetters": true,
	"putThrottle": true, "patchThrottle": true, "postSnapshot": true,
	opLogin: true, "logout": true,
	"putAddressSettings": true, "deleteAddressSettings": true,
}

// audit logs an operation with its principal, subject and result.
func (s *Server) audit(r *http.Request, op string, err error) {
	subject, result := "broker", "ok"
	for _, part := range []string{"topic", "group", "match"} {
		if name := r.PathValue(part); name != "" {
			subject = name
		}
	}
	if err != nil {
		result = err.Error()
	}
	args := []any{"operation", op, "subject", subject, "key", gate.NameOf(r), "peer", r.RemoteAddr, "result", result}
	if r.URL.RawQuery != "" {
		args = append(args, "query", r.URL.RawQuery[:min(len(r.URL.RawQuery), 200)])
	}
	s.log.Log(r.Context(), slog.LevelInfo, "audit", args...)
}
