package admin

import (
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
)

// TraceMessage returns the messages of a topic that have an ID, with their fates in the groups that
// the key may observe.
func (h *Handlers) TraceMessage(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "group", "since", "before", "after", "limit")
	query := status.MessageQuery{
		MessageFilter: status.MessageFilter{ID: r.PathValue("id")},
		Since:         q.Time("since"), Before: q.Time("before"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	group := q.Text("group")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	topic := r.PathValue("topic")
	if group != "" {
		if err := h.gate.Permit(r, access.ToBrowse(topic, group)); err != nil {
			return 0, nil, err
		}
		if _, err := h.engine.Group(group); err != nil {
			return 0, nil, err
		}
	}
	trace, err := h.engine.Trace(topic, query, func(name string) bool {
		return group == name || group == "" && h.gate.Allows(r, access.ToBrowse(topic, name))
	})
	return http.StatusOK, trace, err
}
