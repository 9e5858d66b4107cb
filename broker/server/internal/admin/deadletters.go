package admin

import (
	"cmp"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/access"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
)

// A DeadLetter is a dead letter in JSON.
type DeadLetter struct {
	MessageID    string            `json:"message_id"`
	Queue        int               `json:"queue"` // here and in offset: where it lies now
	Offset       int64             `json:"offset"`
	StoredAt     time.Time         `json:"stored_at"` // when it became a dead letter
	BornAt       time.Time         `json:"born_at"`
	BornHost     string            `json:"born_host,omitempty"`
	Origin       DeadLetterOrigin  `json:"origin"`
	MessageGroup string            `json:"message_group,omitempty"`
	Tag          string            `json:"tag,omitempty"`
	Keys         []string          `json:"keys,omitempty"`
	Properties   map[string]string `json:"properties,omitempty"`
	BodySize     int               `json:"body_size"`
	Body         []byte            `json:"body,omitempty"` // in base64, if asked for
	BodyText     *string           `json:"body_text,omitempty"`
}

// A DeadLetterOrigin is where a dead letter was delivered last, and why it was given up.
type DeadLetterOrigin struct {
	Topic    string `json:"topic"`
	Queue    int    `json:"queue"`
	Offset   int64  `json:"offset"`
	Group    string `json:"group"`
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason"`
	Redrives int    `json:"redrives"`
}

// A DeadLetterPage is some dead letters, and the cursor behind the last of them.
type DeadLetterPage struct {
	DeadLetters []DeadLetter `json:"dead_letters"`
	Next        string       `json:"next,omitempty"`
}

// DeadLetterRedriveRequest is a broker.DeadLetterSelection in JSON.
type DeadLetterRedriveRequest struct {
	Topic       string    `json:"topic"`
	MessageIDs  []string  `json:"message_ids"`
	Reason      string    `json:"reason"`
	Since       time.Time `json:"since"`
	Before      time.Time `json:"before"`
	After       string    `json:"after"`
	Limit       int       `json:"limit"`
	To          string    `json:"to"`
	MaxRedrives int       `json:"max_redrives"`
	In          string    `json:"dead_letter_topic"`
}

func deadLetterFilter(q *web.Query) broker.DeadLetterFilter {
	return broker.DeadLetterFilter{
		Topic: q.Text("topic"), MessageIDs: q.List("message_id"), Reason: q.Text("reason"), Since: q.Time("since"), Before: q.Time("before"),
	}
}

// permitLettersIn refuses a topic of dead letters that is none of the group's own, unless the key
// has a right to the topic itself: the response would show whether there is such a topic.
func (h *Handlers) permitLettersIn(r *http.Request, topic string, need access.Need) error {
	group := r.PathValue("group")
	if topic == "" || topic == tidegate.DeadLetterTopic(group) {
		return nil
	}
	if g, err := h.engine.Group(group); err == nil && slices.Contains(g.DeadLetterTopics, topic) {
		return nil
	}
	return h.gate.Permit(r, need)
}

// ListDeadLetters returns dead letters of a group, without bodies unless the query has bodies or
// text.
func (h *Handlers) ListDeadLetters(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "topic", "message_id", "reason", "since", "before", "after", "limit", "bodies", "text", "dead_letter_topic")
	letters := broker.DeadLetterQuery{DeadLetterFilter: deadLetterFilter(q), In: q.Text("dead_letter_topic"), After: q.Text("after"), Limit: q.Number("limit")}
	bodies, text := q.Yes("bodies"), q.Yes("text")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	if err := h.permitLettersIn(r, letters.In, access.ToReceive(letters.In, r.PathValue("group"))); err != nil {
		return 0, nil, err
	}
	page, err := h.engine.DeadLetters(r.PathValue("group"), letters)
	out := DeadLetterPage{DeadLetters: make([]DeadLetter, len(page.Letters)), Next: page.Next}
	for i := range page.Letters {
		l := &page.Letters[i]
		out.DeadLetters[i] = DeadLetter{
			MessageID: l.ID, Queue: l.Queue, Offset: l.Offset, StoredAt: l.StoredAt, BornAt: l.BornAt, BornHost: l.BornHost,
			Origin: DeadLetterOrigin{
				Topic: l.Origin.Topic, Queue: l.Origin.Queue, Offset: l.Origin.Offset, Group: l.Origin.Group,
				Attempts: l.Origin.Attempts, Reason: l.Origin.Reason, Redrives: l.Origin.Redrives,
			},
			MessageGroup: l.MessageGroup, Tag: l.Tag, Keys: l.Keys, BodySize: len(l.Body),
		}
		for k, v := range l.Properties {
			if tidegate.ReservedProperty(k) {
				continue // told by origin
			}
			if out.DeadLetters[i].Properties == nil {
				out.DeadLetters[i].Properties = map[string]string{}
			}
			out.DeadLetters[i].Properties[k] = v
		}
		switch {
		case text && utf8.Valid(l.Body):
			out.DeadLetters[i].BodyText = new(string(l.Body))
		case text, bodies:
			out.DeadLetters[i].Body = l.Body
		}
	}
	return http.StatusOK, out, err
}

// RedriveDeadLetters answers 429 only if a throttle kept it from doing
// anything; else the throttle is a part of the answer.
func (h *Handlers) RedriveDeadLetters(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req DeadLetterRedriveRequest
	if err := web.ReadJSON(w, r, &req); err != nil {
		return 0, nil, err
	}
	if req.MessageIDs != nil && len(req.MessageIDs) == 0 {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "message_ids", "message_ids is empty: give the IDs, or leave it out for all")
	}
	needs := access.OnServer(access.Admin) // they go to whatever topics they came from
	if to := cmp.Or(req.To, req.Topic); to != "" {
		needs = access.ToSend(to)
	}
	if err := h.gate.Permit(r, needs); err != nil {
		return 0, nil, err
	}
	if err := h.permitLettersIn(r, req.In, access.OnTopic(access.Admin, req.In)); err != nil {
		return 0, nil, err
	}
	done, err := h.engine.RedriveDeadLetters(r.Context(), r.PathValue("group"), broker.DeadLetterSelection{
		DeadLetterFilter: broker.DeadLetterFilter{Topic: req.Topic, MessageIDs: req.MessageIDs, Reason: req.Reason, Since: req.Since, Before: req.Before},
		In:               req.In, After: req.After, Limit: req.Limit, To: req.To, MaxRedrives: req.MaxRedrives,
	})
	if errors.Is(err, tidegate.ErrThrottled) && done.Redriven > 0 {
		err = nil
	}
	return http.StatusOK, done, err
}

// PurgeDeadLetters removes what is selected; all only if that is said.
func (h *Handlers) PurgeDeadLetters(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := web.QueryOf(r, "topic", "message_id", "reason", "since", "before", "after", "limit", "all", "dead_letter_topic")
	sel := broker.DeadLetterSelection{DeadLetterFilter: deadLetterFilter(q), In: q.Text("dead_letter_topic"), After: q.Text("after"), Limit: q.Number("limit")}
	all := q.Yes("all")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	if some := !reflect.ValueOf(sel.DeadLetterFilter).IsZero(); some == all {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "all",
			"dead letters are removed for good: give all=true, or which ones by topic, message_id, reason, since or before, not both")
	}
	if err := h.permitLettersIn(r, sel.In, access.OnTopic(access.Admin, sel.In)); err != nil {
		return 0, nil, err
	}
	done, err := h.engine.PurgeDeadLetters(r.Context(), r.PathValue("group"), sel)
	return http.StatusOK, done, err
}
