package admin

import (
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
)

// A StoredMessage is a stored message in JSON, with the body as text if the query asks for text.
type StoredMessage struct {
	status.StoredMessage
	BodyText *string `json:"body_text,omitempty"`
}

// A MessagePage is one page of stored messages.
type MessagePage struct {
	Messages []StoredMessage `json:"messages"`
	status.MessagePage
}

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
	contents, text := q.Yes("contents"), q.Yes("text")
	query.Contents = contents || text
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
	if query.Contents || query.Key != "" || query.Contains != "" || query.Properties != nil {
		if err := h.gate.Permit(r, access.ToRead(topic)); err != nil {
			return 0, nil, err
		}
	}
	held := transit.Of(r.Context())
	room := pageBytes(held.Limit())
	if err := held.Resize(min(jsonFactor*(room+int64(h.maxBody)), held.Largest()), false); err != nil {
		return 0, nil, err
	}
	page, err := h.engine.Messages(topic, query, room)
	size := int64(0)
	out := MessagePage{Messages: make([]StoredMessage, len(page.Messages)), MessagePage: page}
	for i := range page.Messages {
		m := &out.Messages[i]
		m.StoredMessage = page.Messages[i]
		size += sizeOfMessage(&m.StoredMessage)
		if text && utf8.Valid(m.Body) {
			m.Body, m.BodyText = nil, new(string(m.Body))
		}
	}
	if held := held.Resize(jsonFactor*size, true); held != nil && err == nil {
		err = held
	}
	return http.StatusOK, out, err
}

// sizeOfMessage returns the approximate memory of a message in bytes.
func sizeOfMessage(m *status.StoredMessage) int64 {
	n := besideBody + len(m.Body)
	for k, v := range m.Properties {
		n += len(k) + len(v)
	}
	return int64(n)
}
