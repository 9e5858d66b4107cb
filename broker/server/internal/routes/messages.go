package routes

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// BrowseMessages returns stored messages of a topic without delivering them. Bodies, keys and
// properties, and filters by them, need the permission to receive from the topic.
func (h *Admin) BrowseMessages(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := QueryOf(r, "queue", "offset", "id", "tag", "message_group", "key", "property", "contains", "since", "before", "order", "after", "limit", "contents", "text", "state")
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
func (h *Admin) withContents(r *http.Request, query *status.MessageQuery, read func(room int64) ([]*status.StoredMessage, error)) error {
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

// TraceMessage returns the messages of a topic that have an ID, with their fates in the groups that
// the key may observe. Their bodies, keys and properties are those of BrowseMessages.
func (h *Admin) TraceMessage(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := QueryOf(r, "group", "since", "before", "after", "limit", "contents", "text")
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
func (h *Admin) hideContents(r *http.Request, f *status.Fate) {
	if d := f.DeadLetter; d != nil && !h.gate.Allows(r, access.ToReceive(tidegate.DeadLetterTopic(f.Group), f.Group)) {
		d.Keys, d.Properties = nil, nil
	}
}

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
func (h *Admin) RewindGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req RewindRequest
	if err := readJSON(w, r, &req); err != nil {
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
func (h *Admin) ListParked(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := QueryOf(r, "topic", "state", "after", "limit")
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
func (h *Admin) permitTopic(r *http.Request, a access.Action, topic string) error {
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
func (h *Admin) RedriveParked(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req ParkedRedriveRequest
	if err := readJSON(w, r, &req); err != nil {
		return 0, nil, err
	}
	if err := h.permitTopic(r, access.Admin, req.Topic); err != nil {
		return 0, nil, err
	}
	done, err := h.engine.RedriveParked(r.Context(), r.PathValue("group"), status.ParkedSelection(req))
	return http.StatusOK, done, err
}
