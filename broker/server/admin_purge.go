package server

import (
	"net/http"

	"github.com/tidegate/tidegate/broker"
)

// purgeTopic answers POST /v1/topics/{topic}/purge with what was removed.
func (s *Server) purgeTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	removed, err := s.b.PurgeTopic(r.Context(), r.PathValue("topic"))
	return http.StatusOK, struct {
		Removed broker.Backlog `json:"removed"`
	}{removed}, err
}
