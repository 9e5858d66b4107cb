package admin

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
)

// A RewindRequest moves a group to another position: to is "earliest", "latest" or a time (RFC
// 3339); offsets are by queue number.
type RewindRequest struct {
	Topic   string           `json:"topic"`
	To      string           `json:"to"`
	Offsets map[string]int64 `json:"offsets"`
	DryRun  bool             `json:"dry_run"`
}

// A RewindResult is the result of a rewind by queue.
type RewindResult struct {
	Queues []status.QueueRewind `json:"queues"`
}

// RewindGroup sets a group's position in a topic.
func (h *Handlers) RewindGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req RewindRequest
	if err := web.ReadJSON(w, r, &req); err != nil {
		return 0, nil, err
	}
	to, err := req.position()
	if err != nil {
		return 0, nil, err
	}
	group := r.PathValue("group")
	// A group at the beginning of a topic can throttle the producers of the topic.
	if err := h.gate.Permit(r, access.OnBoth(access.Admin, req.Topic, group)); err != nil {
		return 0, nil, err
	}
	if req.DryRun {
		queues, err := h.engine.PlanRewind(group, req.Topic, to)
		return http.StatusOK, Plan{RewindResult{notNil(queues)}}, err
	}
	queues, err := h.engine.Rewind(r.Context(), group, req.Topic, to)
	return http.StatusOK, RewindResult{notNil(queues)}, err
}

func (r RewindRequest) position() (p status.Position, err error) {
	switch r.To {
	case "":
	case "earliest":
		p.Earliest = true
	case "latest":
		p.Latest = true
	default:
		if p.Time, err = time.Parse(time.RFC3339, r.To); err != nil {
			return p, refusal.New(tidegate.CodeBadRequest, "to", fmt.Sprintf("to is %.100q; give earliest, latest or a time such as 2026-01-31T12:00:00Z", r.To))
		}
	}
	for text, offset := range r.Offsets {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return p, refusal.New(tidegate.CodeBadRequest, "offsets", fmt.Sprintf("offsets has the key %.100q; give queue numbers as keys", text))
		}
		if p.Offsets == nil {
			p.Offsets = map[int]int64{}
		}
		p.Offsets[int(n)] = offset
	}
	return p, nil
}

// ParkedRedriveRequest sends parked message groups on: one, all of a topic, or
// all. With dead_letter the failed message becomes a dead letter.
type ParkedRedriveRequest struct {
	Topic        string `json:"topic"`
	MessageGroup string `json:"message_group"`
	DeadLetter   bool   `json:"dead_letter"`
}

// ListParked returns the parked and blocked message groups of a consumer group.
func (h *Handlers) ListParked(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "topic", "state", "after", "limit")
	parked := status.ParkedQuery{Topic: q.Text("topic"), State: q.Text("state"), After: q.Text("after"), Limit: q.Number("limit")}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	if err := h.permitTopic(r, access.Observe, parked.Topic); err != nil {
		return 0, nil, err
	}
	page, err := h.engine.Parked(r.PathValue("group"), parked)
	return http.StatusOK, page, err
}

// permitTopic rejects a request about parked message groups unless the key has the right for the
// group on the topic, or on each topic of the group if the request names none.
func (h *Handlers) permitTopic(r *http.Request, a access.Action, topic string) error {
	group := r.PathValue("group")
	if topic != "" {
		return h.gate.Permit(r, access.OnBoth(a, topic, group))
	}
	g, err := h.engine.Group(group)
	if err != nil {
		return nil //nolint:nilerr // the engine reports it
	}
	needs := make([]access.Need, len(g.Topics))
	for i := range g.Topics {
		needs[i] = access.OnBoth(a, g.Topics[i].Topic, group)
	}
	return h.gate.Permit(r, needs...)
}

// RedriveParked has parked message groups delivered again.
func (h *Handlers) RedriveParked(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req ParkedRedriveRequest
	if err := web.ReadJSON(w, r, &req); err != nil {
		return 0, nil, err
	}
	if err := h.permitTopic(r, access.Admin, req.Topic); err != nil {
		return 0, nil, err
	}
	done, err := h.engine.RedriveParked(r.Context(), r.PathValue("group"), status.ParkedSelection(req))
	return http.StatusOK, done, err
}
