package admin

import (
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
)

// ListFailures returns the latest failures of a group.
func (h *Handlers) ListFailures(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "topic", "after", "limit")
	query := status.FailureQuery{Topic: q.Text("topic"), After: q.Text("after"), Limit: q.Number("limit")}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := h.engine.Failures(r.PathValue("group"), query)
	return http.StatusOK, page, err
}
