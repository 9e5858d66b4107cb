package admin

import (
	"net/http"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
)

// TraceMessage returns the messages of a topic that have an ID, with their fates in the groups that
// the key may observe. Their bodies, keys and properties are those of BrowseMessages.
func (h *Handlers) TraceMessage(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "group", "since", "before", "after", "limit", "contents", "text")
	query := status.MessageQuery{
		MessageFilter: status.MessageFilter{ID: r.PathValue("id")},
		Since:         q.Time("since"), Before: q.Time("before"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	query.Contents, query.Text = q.Yes("contents"), q.Yes("text")
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
	var trace status.Trace
	err := h.withContents(r, &query, func(room int64) (messages []*status.StoredMessage, err error) {
		trace, err = h.engine.Trace(topic, query, room, func(name string) bool {
			return group == name || group == "" && h.gate.Allows(r, access.ToBrowse(topic, name))
		})
		for i := range trace.Messages {
			messages = append(messages, &trace.Messages[i].StoredMessage)
			for f := range trace.Messages[i].Groups {
				h.hideContents(r, &trace.Messages[i].Groups[f])
			}
		}
		return messages, err
	})
	return http.StatusOK, trace, err
}

// hideContents removes the keys and properties of a dead letter that the key may not receive, as
// ListDeadLetters does.
func (h *Handlers) hideContents(r *http.Request, f *status.Fate) {
	if d := f.DeadLetter; d != nil && !h.gate.Allows(r, access.ToReceive(tidegate.DeadLetterTopic(f.Group), f.Group)) {
		d.Keys, d.Properties = nil, nil
	}
}
