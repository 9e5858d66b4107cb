package admin

import (
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/web"
)

// ListQueues returns the queues of a topic.
func (h *Handlers) ListQueues(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "after", "limit")
	after, limit := q.Text("after"), q.Number("limit")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := h.engine.QueuesPage(r.PathValue("topic"), after, limit)
	return http.StatusOK, page, err
}

// ListGroupQueues returns the progress of a group in the queues of a topic.
func (h *Handlers) ListGroupQueues(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "after", "limit")
	after, limit := q.Text("after"), q.Number("limit")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := h.engine.GroupQueues(r.PathValue("group"), r.PathValue("topic"), after, limit)
	return http.StatusOK, page, err
}
