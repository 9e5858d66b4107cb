package server

import (
	"net/http"

	"github.com/tidegate/tidegate/broker"
)

// parkedRedriveRequest sends parked message groups on: one, all of a topic, or
// all. With dead_letter the failed message becomes a dead letter.
type parkedRedriveRequest struct {
	Topic        string `json:"topic"`
	MessageGroup string `json:"message_group"`
	DeadLetter   bool   `json:"dead_letter"`
}

func (s *Server) listParked(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "topic", "after", "limit")
	parked := broker.ParkedQuery{Topic: q.text("topic"), After: q.text("after"), Limit: q.number("limit")}
	if q.err != nil {
		return 0, nil, q.err
	}
	page, err := s.b.Parked(r.PathValue("group"), parked)
	return http.StatusOK, page, err
}

func (s *Server) redriveParked(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req parkedRedriveRequest
	if err := readJSON(w, r, &req); err != nil {
		return 0, nil, err
	}
	done, err := s.b.RedriveParked(r.Context(), r.PathValue("group"), broker.ParkedSelection(req))
	return http.StatusOK, done, err
}
