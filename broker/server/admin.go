package server

import (
	"net/http"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/access"
	"github.com/tidegate/tidegate/broker/server/internal/web"
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
	if err := web.ReadJSON(w, r, &c); err != nil {
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
	if err := web.ReadJSON(w, r, &c); err != nil {
		return 0, nil, err
	}
	var needs []access.Need // for topics that are not the group's own by their names
	if to := c.RetryTopic.Topic; to != "" {
		needs = append(needs, access.ToSend(to), access.ToReceive(to, name)) // receives of the group take from it
	}
	if to := c.RetryTopic.DeadLetterTopic; to != "" {
		needs = append(needs, access.ToSend(to))
	}
	if err := s.gate.Permit(r, needs...); err != nil {
		return 0, nil, err
	}
	_, missing := s.b.Group(name)
	g, err := s.b.PutGroup(r.Context(), name, c)
	return putStatus(missing), g, err
}

func (s *Server) deleteGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, s.b.DeleteGroup(r.Context(), r.PathValue("group"))
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

// purgeTopic answers POST /v1/topics/{topic}/purge with what was removed.
func (s *Server) purgeTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	removed, err := s.b.PurgeTopic(r.Context(), r.PathValue("topic"))
	return http.StatusOK, struct {
		Removed broker.Backlog `json:"removed"`
	}{removed}, err
}

// throttleState is the answer of /v1/throttle.
type throttleState struct {
	// Throttles refuse sends now; NotReached are the other limits that are set.
	Throttles  []broker.LimitState `json:"throttles"`
	NotReached []broker.LimitState `json:"not_reached"`

	// Limits are those of the whole broker, as PUT takes them.
	Limits broker.Limits `json:"limits"`
}

func (s *Server) getThrottle(http.ResponseWriter, *http.Request) (int, any, error) {
	a := throttleState{Throttles: []broker.LimitState{}, NotReached: []broker.LimitState{}, Limits: s.b.Limits()}
	for _, l := range s.b.Throttles() {
		if l.On {
			a.Throttles = append(a.Throttles, l)
		} else {
			a.NotReached = append(a.NotReached, l)
		}
	}
	return http.StatusOK, a, nil
}

// putThrottle sets the limits of the whole broker; those that are left out
// get their defaults.
func (s *Server) putThrottle(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var l broker.Limits
	if err := web.ReadJSON(w, r, &l); err != nil {
		return 0, nil, err
	}
	if err := s.b.SetLimits(l); err != nil {
		return 0, nil, err
	}
	return s.getThrottle(w, r)
}
