package admin

import (
	"fmt"
	"net/http"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
)

// ListLeases returns the unfinished messages of a group in a topic.
func (h *Handlers) ListLeases(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "state", "sort", "after", "limit")
	query := status.LeaseQuery{State: q.Text("state"), After: q.Text("after"), Limit: q.Number("limit")}
	sort := q.Text("sort")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	switch sort {
	case "", "position":
	case "due":
		query.ByDue = true
	default:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "sort", fmt.Sprintf("sort is %.100q; give position or due", sort))
	}
	page, err := h.engine.Leases(r.PathValue("group"), r.PathValue("topic"), query)
	return http.StatusOK, page, err
}

// GetSchedule returns when the messages of a group in a topic are due.
func (h *Handlers) GetSchedule(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	schedule, err := h.engine.Schedule(r.PathValue("group"), r.PathValue("topic"))
	return http.StatusOK, schedule, err
}
