package server

import (
	"net/http"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/access"
)

func (s *Server) listTopics(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Topics []broker.Topic `json:"topics"`
	}{notNil(s.b.Topics())}, nil
}

func (s *Server) getTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	t, err := s.b.Topic(r.PathValue("topic"))
	return http.StatusOK, t, err
}

func (s *Server) putTopic(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("topic")
	var c broker.TopicConfig
	if err := readJSON(w, r, &c); err != nil {
		return 0, nil, err
	}
	_, missing := s.b.TopicSettings(name)
	t, err := s.b.PutTopic(r.Context(), name, c)
	return putStatus(missing), t, err
}

func (s *Server) deleteTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, s.b.DeleteTopic(r.Context(), r.PathValue("topic"))
}

func (s *Server) listGroups(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Groups []broker.Group `json:"groups"`
	}{notNil(s.b.Groups())}, nil
}

func (s *Server) getGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	g, err := s.b.Group(r.PathValue("group"))
	return http.StatusOK, g, err
}

func (s *Server) putGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("group")
	var c broker.GroupConfig
	if err := readJSON(w, r, &c); err != nil {
		return 0, nil, err
	}
	var needs []access.Need // for topics that are not the group's own by their names
	if to := c.RetryTopic.Topic; to != "" {
		needs = append(needs, access.ToSend(to), access.ToReceive(to, name)) // receives of the group take from it
	}
	if to := c.RetryTopic.DeadLetterTopic; to != "" {
		needs = append(needs, access.ToSend(to))
	}
	if err := s.permit(r, needs...); err != nil {
		return 0, nil, err
	}
	_, missing := s.b.Group(name)
	g, err := s.b.PutGroup(r.Context(), name, c)
	if err == nil {
		s.sessions.pushGroup(name) // consumers follow a change at once
	}
	return putStatus(missing), g, err
}

func (s *Server) deleteGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, s.b.DeleteGroup(r.Context(), r.PathValue("group"))
}

type state struct {
	Status string `json:"status"`
}

func (s *Server) healthz(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, state{"ok"}, nil
}

func (s *Server) readyz(http.ResponseWriter, *http.Request) (int, any, error) {
	err := s.b.Healthy()
	if err == nil && s.isDraining() {
		err = tidegate.ErrClosed
	}
	if err != nil {
		return 0, nil, &notReady{err}
	}
	return http.StatusOK, state{"ready"}, nil
}

func putStatus(missing error) int {
	if missing != nil {
		return http.StatusCreated
	}
	return http.StatusOK
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{} // [] in JSON, not null
	}
	return s
}
