package admin

import (
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
)

// ListDeadLetterClasses returns the classes of the dead letters of a group.
func (h *Handlers) ListDeadLetterClasses(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "topic", "dead_letter_topic", "after", "limit")
	query := status.DeadLetterClassQuery{Topic: q.Text("topic"), In: q.Text("dead_letter_topic"), After: q.Text("after"), Limit: q.Number("limit")}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	if err := h.permitLetters(r, query.In, false); err != nil {
		return 0, nil, err
	}
	page, err := h.engine.DeadLetterClasses(r.PathValue("group"), query)
	return http.StatusOK, page, err
}
