package server

import (
	"cmp"
	"errors"
	"net/http"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/httpapi"
)

const (
	// jsonFactor is how many times its size a page of dead letters takes: the letters, the base64
	// of their bodies and the JSON around that, which grows by doubling.
	jsonFactor = 5

	// A page has a small part of the memory for requests and responses, within these bounds.
	pagePart                = 32
	leastOfPage, mostOfPage = 1 << 20, 8 << 20
	besideBody              = 1 << 10 // of a letter
)

// pageBytes returns after how many bytes a page ends if all responses may take so much memory.
func pageBytes(memory int64) int64 { return min(max(memory/pagePart, leastOfPage), mostOfPage) }

// sizeOf returns the memory of a response with a page, in bytes.
func sizeOf(page *status.DeadLetterPage) int64 {
	n := 0
	for i := range page.DeadLetters {
		n += besideBody + len(page.DeadLetters[i].Body)
		for k, v := range page.DeadLetters[i].Properties {
			n += len(k) + len(v)
		}
	}
	return jsonFactor * int64(n)
}

func deadLetterFilter(q *urlQuery) status.DeadLetterFilter {
	return status.DeadLetterFilter{
		Topic: q.Text("topic"), MessageIDs: q.List("message_id"), Reason: q.Text("reason"), Since: q.Time("since"), Before: q.Time("before"),
		Fingerprint: q.Text("fingerprint"),
	}
}

// newest reads the parameter order.
func newest(q *urlQuery) (bool, error) {
	switch order := q.Text("order"); order {
	case "", "oldest":
		return false, nil
	case "newest":
		return true, nil
	default:
		return false, refusal.New(tidegate.CodeBadRequest, "order", "order is %.100q; give oldest or newest", order)
	}
}

// permitLettersIn rejects a dead letter topic that the group does not use, unless the key has a
// right to the topic itself. The response would show whether the topic exists.
func (h *adminRoutes) permitLettersIn(r *http.Request, topic string, need access.Need) error {
	if h.ownLetters(r.PathValue("group"), topic) {
		return nil
	}
	return h.gate.Permit(r, need)
}

// ownLetters reports whether a topic is one of the dead letter topics of a group; "" is.
func (h *adminRoutes) ownLetters(group, topic string) bool {
	if topic == "" || topic == tidegate.DeadLetterTopic(group) {
		return true
	}
	g, err := h.engine.Group(group)
	return err == nil && slices.Contains(g.DeadLetterTopics, topic)
}

// readsLetters reports whether the key may receive the dead letters of a list.
func (h *adminRoutes) readsLetters(r *http.Request, in string) bool {
	group := r.PathValue("group")
	return h.gate.Allows(r, access.ToReceive(tidegate.DeadLetterTopic(group), group)) &&
		(h.ownLetters(group, in) || h.gate.Allows(r, access.ToReceive(in, group)))
}

// permitLetters rejects a list of dead letters in the topic in, or in the group's own for "".
// Bodies need the permission to receive.
func (h *adminRoutes) permitLetters(r *http.Request, in string, bodies bool) error {
	group := r.PathValue("group")
	if !bodies {
		return h.permitLettersIn(r, in, access.ToBrowse(in, group))
	}
	if err := h.gate.Permit(r, access.ToReceive(tidegate.DeadLetterTopic(group), group)); err != nil {
		return err
	}
	return h.permitLettersIn(r, in, access.ToReceive(in, group))
}

// ListDeadLetters returns dead letters of a group, without bodies unless the query has bodies or
// text, and without keys and properties unless the key may receive them.
func (h *adminRoutes) ListDeadLetters(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "topic", "message_id", "reason", "since", "before", "after", "limit", "bodies", "text", "dead_letter_topic", "fingerprint", "order", "count")
	letters := status.DeadLetterQuery{DeadLetterFilter: deadLetterFilter(q), In: q.Text("dead_letter_topic"), After: q.Text("after"), Limit: q.Number("limit")}
	bodies, text, count := q.Yes("bodies"), q.Yes("text"), q.Yes("count")
	var err error
	if letters.Newest, err = newest(q); err != nil || q.Err != nil {
		return 0, nil, cmp.Or(q.Err, err)
	}
	if err := h.permitLetters(r, letters.In, bodies || text); err != nil {
		return 0, nil, err
	}
	if count {
		counted, err := h.engine.CountDeadLetters(r.PathValue("group"), letters)
		return http.StatusOK, counted, err
	}
	letters.Bodies = bodies || text
	held := admission.HoldOf(r.Context())
	bytes := pageBytes(held.Limit())
	if err := held.Resize(min(jsonFactor*(bytes+int64(h.maxBody)), held.Largest()), false); err != nil {
		return 0, nil, err
	}
	page, err := h.engine.DeadLetters(r.PathValue("group"), letters, bytes)
	if held := held.Resize(sizeOf(&page), true); held != nil && err == nil {
		err = held
	}
	reads := letters.Bodies || h.readsLetters(r, letters.In)
	for i := range page.DeadLetters {
		d := &page.DeadLetters[i]
		if !reads {
			d.Keys, d.Properties = nil, nil
		}
		if text {
			d.Body, d.BodyText = httpapi.Text(d.Body)
		}
	}
	return http.StatusOK, page, err
}

// RedriveDeadLetters responds with 429 only if a throttle rejected the first dead letter. Otherwise
// the throttle is a part of the result.
func (h *adminRoutes) RedriveDeadLetters(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req status.DeadLetterSelection
	raw, err := readObject(w, r, h.maxEdit(r), &req)
	if err != nil {
		return 0, nil, err
	}
	if req.Edit != nil && !placed(raw) {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "edit", "queue or offset is missing; give the place of the dead letter as the list has it")
	}
	if req.MessageIDs != nil && len(req.MessageIDs) == 0 {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "message_ids", "message_ids is empty; give the IDs, or leave it out for all dead letters")
	}
	needs := access.OnServer(access.Admin) // each goes to the topic of its original send
	if to := cmp.Or(req.To, req.Topic); to != "" {
		needs = access.ToSend(to)
	}
	// The right to administer the group suffices to send it what it received before. An edit sends
	// a new message.
	if !req.ToGroupOnly || req.Edit != nil {
		if err := h.gate.Permit(r, needs); err != nil {
			return 0, nil, err
		}
	}
	if err := h.permitLettersIn(r, req.In, access.OnTopic(access.Admin, req.In)); err != nil {
		return 0, nil, err
	}
	done, err := h.engine.RedriveDeadLetters(r.Context(), r.PathValue("group"), req)
	if errors.Is(err, tidegate.ErrThrottled) && done.Redriven > 0 {
		err = nil
	}
	if req.DryRun {
		return http.StatusOK, plan{done}, err
	}
	return http.StatusOK, done, err
}

// placed reports whether the edit of a request has the place of the letter. Without it, the zero
// values would select another letter.
func placed(raw []byte) bool {
	var req struct {
		Edit struct {
			Queue  *int   `json:"queue"`
			Offset *int64 `json:"offset"`
		} `json:"edit"`
	}
	return json.Unmarshal(raw, &req) == nil && req.Edit.Queue != nil && req.Edit.Offset != nil
}

// maxEdit bounds a request with an edited body, in bytes: base64 makes four of three.
func (h *adminRoutes) maxEdit(r *http.Request) int64 {
	held := admission.HoldOf(r.Context())
	return max(maxAdminBody, min(2*int64(h.maxBody)+maxAdminBody, held.Largest()/bodyFactor-firstRead))
}

// A plan is the result of a dry run. The server writes the result, and does not log a change.
type plan struct{ Result any }

// sentAs is the parameter of PurgeDeadLetters with the ID of the message that the client has sent
// in place of the letter. It is in the query of the record in the audit, as a claim of the client.
const sentAs = "sent_as"

// PurgeDeadLetters removes the selected dead letters; all of them only with all=true.
func (h *adminRoutes) PurgeDeadLetters(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "topic", "message_id", "reason", "since", "before", "after", "limit", "all", "dead_letter_topic", "fingerprint", "order", "dry_run", sentAs)
	sel := status.DeadLetterSelection{DeadLetterFilter: deadLetterFilter(q), In: q.Text("dead_letter_topic"), After: q.Text("after"), Limit: q.Number("limit")}
	all := q.Yes("all")
	sel.DryRun, sel.SentAs = q.Yes("dry_run"), q.Text(sentAs)
	var err error
	if sel.Newest, err = newest(q); err != nil || q.Err != nil {
		return 0, nil, cmp.Or(q.Err, err)
	}
	if some := !reflect.ValueOf(sel.DeadLetterFilter).IsZero(); some == all {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "all",
			"removing dead letters is permanent; give either all=true, or a selection by topic, message_id, reason, fingerprint, since or before")
	}
	if sel.SentAs != "" && len(sel.MessageIDs) != 1 {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, sentAs, "%s names the message that replaces one dead letter, and the request selects %d by message_id", sentAs, len(sel.MessageIDs))
	}
	if err := h.permitLettersIn(r, sel.In, access.OnTopic(access.Admin, sel.In)); err != nil {
		return 0, nil, err
	}
	done, err := h.engine.PurgeDeadLetters(r.Context(), r.PathValue("group"), sel)
	if sel.DryRun {
		return http.StatusOK, plan{done}, err
	}
	return http.StatusOK, done, err
}

// ListDeadLetterClasses returns the classes of the dead letters of a group.
func (h *adminRoutes) ListDeadLetterClasses(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "topic", "dead_letter_topic", "after", "limit")
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

// ListFailures returns the latest failures of a group.
func (h *adminRoutes) ListFailures(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "topic", "after", "limit")
	query := status.FailureQuery{Topic: q.Text("topic"), After: q.Text("after"), Limit: q.Number("limit")}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := h.engine.Failures(r.PathValue("group"), query)
	return http.StatusOK, page, err
}

// ListLeases returns the unfinished messages of a group in a topic.
func (h *adminRoutes) ListLeases(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "state", "sort", "after", "limit")
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
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "sort", "sort is %.100q; give position or due", sort)
	}
	page, err := h.engine.Leases(r.PathValue("group"), r.PathValue("topic"), query)
	return http.StatusOK, page, err
}

// GetSchedule returns when the messages of a group in a topic are due.
func (h *adminRoutes) GetSchedule(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	schedule, err := h.engine.Schedule(r.PathValue("group"), r.PathValue("topic"))
	return http.StatusOK, schedule, err
}

// ListQueues returns the queues of a topic.
func (h *adminRoutes) ListQueues(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "after", "limit")
	after, limit := q.Text("after"), q.Number("limit")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := h.engine.QueuesPage(r.PathValue("topic"), after, limit)
	return http.StatusOK, page, err
}

// ListGroupQueues returns the progress of a group in the queues of a topic.
func (h *adminRoutes) ListGroupQueues(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "after", "limit")
	after, limit := q.Text("after"), q.Number("limit")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := h.engine.GroupQueues(r.PathValue("group"), r.PathValue("topic"), after, limit)
	return http.StatusOK, page, err
}
