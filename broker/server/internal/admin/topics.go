package admin

import (
	"fmt"
	"net/http"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
)

// GetTopic returns one topic.
func (h *Handlers) GetTopic(w http.ResponseWriter, r *http.Request) (int, any, error) {
	t, err := h.engine.Topic(r.PathValue("topic"))
	web.SetETag(w, t.Revision)
	return http.StatusOK, t, err
}

// PutTopic creates a topic, or changes its settings.
func (h *Handlers) PutTopic(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("topic")
	var c settings.Topic
	raw, err := web.ReadObject(w, r, web.MaxAdminBody, &c)
	if err != nil {
		return 0, nil, err
	}
	if c.Queues == 0 && web.Names(raw, "queues") {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "queues", fmt.Sprintf(
			"queues is 0; give 1 to %d, or leave it out for %d in a new topic", settings.MaxQueues, settings.Topic{}.WithDefaults().Queues))
	}
	may, err := web.IfMatch(r, "topic", name)
	if err != nil {
		return 0, nil, err
	}
	_, missing := h.engine.TopicSettings(name)
	defer h.surveys.Expire()
	t, err := h.engine.PutTopicIf(r.Context(), name, c, may)
	web.SetETag(w, t.Revision)
	return putStatus(missing), t, err
}

// DeleteTopic removes a topic with its messages.
func (h *Handlers) DeleteTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("topic")
	may, err := web.IfMatch(r, "topic", name)
	if err != nil {
		return 0, nil, err
	}
	defer h.surveys.Expire()
	return http.StatusNoContent, nil, h.engine.DeleteTopicIf(r.Context(), name, may)
}

// GetGroup returns one consumer group.
func (h *Handlers) GetGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	g, err := h.engine.Group(r.PathValue("group"))
	web.SetETag(w, g.Revision)
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
	if err := h.permitTopics(r, name, &c.RetryTopic); err != nil {
		return 0, nil, err
	}
	may, err := web.IfMatch(r, "group", name)
	if err != nil {
		return 0, nil, err
	}
	_, missing := h.engine.Group(name)
	defer h.surveys.Expire()
	g, err := h.engine.PutGroupIf(r.Context(), name, c, may)
	web.SetETag(w, g.Revision)
	return putStatus(missing), g, err
}

// PatchGroup changes the settings of a consumer group that the body names.
func (h *Handlers) PatchGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("group")
	patch, err := web.ReadPatch[settings.Group](w, r)
	if err != nil {
		return 0, nil, err
	}
	may, err := web.IfMatch(r, "group", name)
	if err != nil {
		return 0, nil, err
	}
	defer h.surveys.Expire()
	g, err := h.engine.PatchGroupIf(r.Context(), name, func(c *settings.Group) error {
		if err := patch(c); err != nil {
			return err
		}
		return h.permitTopics(r, name, &c.RetryTopic)
	}, may)
	web.SetETag(w, g.Revision)
	return http.StatusOK, g, err
}

// permitTopics checks the permissions for the topics that retry settings of a group name.
func (h *Handlers) permitTopics(r *http.Request, group string, c *settings.RetryTopic) error {
	var needs []access.Need // for topics that are not the group's own by their names
	if to := c.Topic; to != "" {
		needs = append(needs, access.ToSend(to), access.ToReceive(to, group)) // receives of the group take from it
	}
	if to := c.DeadLetterTopic; to != "" {
		needs = append(needs, access.ToSend(to))
	}
	return h.gate.Permit(r, needs...)
}

// DeleteGroup removes a consumer group with its progress.
func (h *Handlers) DeleteGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("group")
	may, err := web.IfMatch(r, "group", name)
	if err != nil {
		return 0, nil, err
	}
	defer h.surveys.Expire()
	return http.StatusNoContent, nil, h.engine.DeleteGroupIf(r.Context(), name, may)
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
	q := web.QueryOf(r, "dry_run")
	dry := q.Yes("dry_run")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	type result struct {
		Removed status.Backlog `json:"removed"`
	}
	if dry {
		removed, err := h.engine.CountPurge(r.PathValue("topic"))
		return http.StatusOK, Plan{result{removed}}, err
	}
	defer h.surveys.Expire()
	removed, err := h.engine.PurgeTopic(r.Context(), r.PathValue("topic"))
	return http.StatusOK, result{removed}, err
}

// GetThrottle returns the limits that reject sends now, the other ones, and the broker's own.
func (h *Handlers) GetThrottle(w http.ResponseWriter, _ *http.Request) (int, any, error) {
	a := status.Throttles{Throttles: []status.LimitState{}, NotReached: []status.LimitState{}}
	a.Limits, a.Revision = h.engine.LimitsRevision()
	web.SetETag(w, a.Revision)
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
	return h.changeLimits(w, r, func(now *settings.Limits) error { *now = l; return nil })
}

// PatchThrottle changes the limits of the whole broker that the body names.
func (h *Handlers) PatchThrottle(w http.ResponseWriter, r *http.Request) (int, any, error) {
	patch, err := web.ReadPatch[settings.Limits](w, r)
	if err != nil {
		return 0, nil, err
	}
	return h.changeLimits(w, r, patch)
}

func (h *Handlers) changeLimits(w http.ResponseWriter, r *http.Request, change func(*settings.Limits) error) (int, any, error) {
	may, err := web.IfMatch(r, "broker", "limits")
	if err != nil {
		return 0, nil, err
	}
	if err := h.engine.PatchLimitsIf(r.Context(), change, may); err != nil {
		return 0, nil, err
	}
	return h.GetThrottle(w, r)
}
