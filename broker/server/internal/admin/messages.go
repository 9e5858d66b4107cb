package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// BrowseMessages returns stored messages of a topic without delivering them. Bodies, keys and
// properties, and filters by them, need the permission to receive from the topic.
func (h *Handlers) BrowseMessages(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "queue", "offset", "id", "tag", "message_group", "key", "property", "contains", "since", "before", "order", "after", "limit", "contents", "text", "state")
	query := status.MessageQuery{
		MessageFilter: status.MessageFilter{ID: q.Text("id"), Tag: q.Text("tag"), MessageGroup: q.Text("message_group"), Key: q.Text("key"), Contains: q.Text("contains")},
		Since:         q.Time("since"), Before: q.Time("before"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	if q.Text("queue") != "" {
		query.Queue = new(q.Number("queue"))
	}
	if q.Text("offset") != "" {
		query.Offset = new(int64(q.Number("offset")))
	}
	query.Contents, query.Text = q.Yes("contents"), q.Yes("text")
	order, state := q.Text("order"), q.Text("state")
	properties := q.List("property")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	if query.Delayed = state == "delayed"; state != "" && !query.Delayed {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "state", fmt.Sprintf("state is %.100q; give delayed, or leave it out", state))
	}
	switch order {
	case "", "oldest":
	case "newest":
		query.Newest = true
	default:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "order", fmt.Sprintf("order is %.100q; give oldest or newest", order))
	}
	for _, p := range properties {
		name, value, ok := strings.Cut(p, "=")
		if !ok {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "property", fmt.Sprintf("property is %.100q; give NAME=VALUE", p))
		}
		if query.Properties == nil {
			query.Properties = map[string]string{}
		}
		query.Properties[name] = value
	}
	topic := r.PathValue("topic")
	if query.Key != "" || query.Contains != "" || query.Properties != nil {
		if err := h.gate.Permit(r, access.ToRead(topic)); err != nil {
			return 0, nil, err
		}
	}
	var page status.MessagePage
	err := h.withContents(r, &query, func(room int64) (messages []*status.StoredMessage, err error) {
		page, err = h.engine.Messages(topic, query, room)
		for i := range page.Messages {
			messages = append(messages, &page.Messages[i])
		}
		return messages, err
	})
	return http.StatusOK, page, err
}

// withContents reads stored messages of the topic of a request, with the memory for a page of their
// contents, and returns their bodies as text if the query asks for text. Contents need the
// permission to receive from the topic.
func (h *Handlers) withContents(r *http.Request, query *status.MessageQuery, read func(room int64) ([]*status.StoredMessage, error)) error {
	if query.Contents = query.Contents || query.Text; query.Contents {
		if err := h.gate.Permit(r, access.ToRead(r.PathValue("topic"))); err != nil {
			return err
		}
	}
	held := transit.Of(r.Context())
	room := pageBytes(held.Limit())
	if err := held.Resize(min(jsonFactor*(room+int64(h.maxBody)), held.Largest()), false); err != nil {
		return err
	}
	messages, err := read(room)
	size := int64(0)
	for _, m := range messages {
		if size += sizeOfMessage(m); query.Text {
			m.Body, m.BodyText = httpapi.Text(m.Body)
		}
	}
	return cmp.Or(err, held.Resize(jsonFactor*size, true))
}

// sizeOfMessage returns the approximate memory of a message in bytes.
func sizeOfMessage(m *status.StoredMessage) int64 {
	n := besideBody + len(m.Body)
	for k, v := range m.Properties {
		n += len(k) + len(v)
	}
	return int64(n)
}
