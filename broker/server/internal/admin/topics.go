package admin

import (
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
)

// ListTopics returns all topics.
func (h *Handlers) ListTopics(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Topics []status.Topic `json:"topics"`
	}{notNil(h.engine.Topics())}, nil
}

// GetTopic returns one topic.
func (h *Handlers) GetTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	t, err := h.engine.Topic(r.PathValue("topic"))
	return http.StatusOK, t, err
}

// PutTopic creates a topic, or changes its settings.
func (h *Handlers) PutTopic(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("topic")
	var c settings.Topic
	if err := web.ReadJSON(w, r, &c); err != nil {
		return 0, nil, err
	}
	_, missing := h.engine.TopicSettings(name)
	t, err := h.engine.PutTopic(r.Context(), name, c)
	return putStatus(missing), t, err
}

// DeleteTopic removes a topic with its messages.
func (h *Handlers) DeleteTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, h.engine.DeleteTopic(r.Context(), r.PathValue("topic"))
}

// ListGroups returns all consumer groups.
func (h *Handlers) ListGroups(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Groups []status.Group `json:"groups"`
	}{notNil(h.engine.Groups())}, nil
}

// GetGroup returns one consumer group.
func (h *Handlers) GetGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	g, err := h.engine.Group(r.PathValue("group"))
	return http.StatusOK, g, err
}

// PutGroup creates a consumer group, or changes its settings. The topics that the settings name
// need permissions of their own.
func (h *Handlers) PutGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("group")
	var c settings.Group
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
	if err := h.gate.Permit(r, needs...); err != nil {
		return 0, nil, err
	}
	_, missing := h.engine.Group(name)
	g, err := h.engine.PutGroup(r.Context(), name, c)
	return putStatus(missing), g, err
}

// DeleteGroup removes a consumer group with its progress.
func (h *Handlers) DeleteGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, h.engine.DeleteGroup(r.Context(), r.PathValue("group"))
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

// PurgeTopic responds to POST /v1/topics/{topic}/purge with the removed messages.
func (h *Handlers) PurgeTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	removed, err := h.engine.PurgeTopic(r.Context(), r.PathValue("topic"))
	return http.StatusOK, struct {
		Removed status.Backlog `json:"removed"`
	}{removed}, err
}

// GetThrottle returns the limits that reject sends now, the other ones, and the broker's own.
func (h *Handlers) GetThrottle(http.ResponseWriter, *http.Request) (int, any, error) {
	a := status.Throttles{Throttles: []status.LimitState{}, NotReached: []status.LimitState{}, Limits: h.engine.Limits()}
	for _, l := range h.engine.Throttles() {
		if l.On {
			a.Throttles = append(a.Throttles, l)
		} else {
			a.NotReached = append(a.NotReached, l)
		}
	}
	return http.StatusOK, a, nil
}

// PutThrottle sets the limits of the whole broker; those that are left out
// get their defaults.
func (h *Handlers) PutThrottle(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var l settings.Limits
	if err := web.ReadJSON(w, r, &l); err != nil {
		return 0, nil, err
	}
	if err := h.engine.SetLimits(l); err != nil {
		return 0, nil, err
	}
	return h.GetThrottle(w, r)
}
