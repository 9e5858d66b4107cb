package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

type handler = func(w http.ResponseWriter, r *http.Request) (int, any, error)

type noClients struct{}

func (noClients) CountGroups() map[string]int64 { return nil }

// newHandlers returns the handlers of an engine with the topic "old" of one queue with 3 messages.
func newHandlers(t *testing.T, o engine.Options, snapshots string) (*adminRoutes, *engine.Engine) {
	t.Helper()
	o.MinInvisibleDuration = time.Nanosecond
	e, err := engine.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if _, err := e.PutTopic(t.Context(), "old", settings.Topic{Queues: 1}, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		m := &tidegate.Message{ID: fmt.Sprint("id-", i), Topic: "old", Body: []byte("x")}
		if err := e.Send(t.Context(), []*tidegate.Message{m})[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	g := auth.NewGate(slog.New(slog.DiscardHandler), auth.Hosts{})
	return newAdminRoutes(e, g, snapshots, 1<<20, newSharedSurvey(e, noClients{})), e
}

// killed makes the three messages dead letters of the group "g", id-0 first.
func killed(t *testing.T, e *engine.Engine) {
	t.Helper()
	for range 3 {
		ds, err := e.Poll(t.Context(), engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "old", InvisibleDuration: time.Minute, Queue: transport.AnyQueue}})
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		if _, err := e.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"}); err != nil {
			t.Fatal(err)
		}
	}
}

// letters returns the IDs of the dead letters of the group "g".
func letters(t *testing.T, e *engine.Engine) (ids []string) {
	t.Helper()
	page, err := e.DeadLetters("g", status.DeadLetterQuery{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range page.DeadLetters {
		ids = append(ids, l.MessageID)
	}
	return ids
}

// call makes a request of a handler. header is "" or the value of If-Match.
func call(f handler, topic, query, body, header string) (int, string, error) {
	r := httptest.NewRequest(http.MethodPut, "/?"+query, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if header != "" {
		r.Header.Set("If-Match", header)
	}
	r.SetPathValue("topic", topic)
	r.SetPathValue("group", "g")
	code, v, err := f(httptest.NewRecorder(), r)
	raw, bad := json.Marshal(v)
	return code, string(raw), errors.Join(err, bad)
}

// codeOf returns the code of an error, and 0 for nil.
func codeOf(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}

// A new topic has the response 201 and a changed one 200. If-Match applies to the revision of the
// topic, and zero queues are not the default.
func TestPutTopic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		topic, body, match string
		status             int
		code               tidegate.Code
		queues             int // afterwards
	}{
		"new":                       {"new", `{"queues":2}`, "", 201, 0, 2},
		"changed":                   {"old", `{"queues":2}`, "", 200, 0, 2},
		"default queues":            {"new", `{}`, "", 201, 0, 8},
		"no queues":                 {"new", `{"queues":0}`, "", 0, tidegate.CodeBadRequest, 0},
		"the revision":              {"old", `{"queues":2}`, `"REVISION"`, 200, 0, 2},
		"another revision":          {"old", `{"queues":2}`, `"7"`, 0, protocol.CodePreconditionFailed, 1},
		"any revision of a new one": {"new", `{}`, `*`, 0, protocol.CodePreconditionFailed, 0},
		"a malformed revision":      {"old", `{"queues":2}`, `1`, 0, tidegate.CodeBadRequest, 1},
		"an unknown key":            {"new", `{"queue":2}`, "", 0, tidegate.CodeBadRequest, 0},
	} {
		h, e := newHandlers(t, engine.Options{}, "")
		old, err := e.Topic("old")
		if err != nil {
			t.Fatal(err)
		}
		status, body, err := call(h.PutTopic, c.topic, "", c.body, strings.Replace(c.match, "REVISION", old.Revision, 1))
		if codeOf(err) != c.code || c.code == 0 && status != c.status {
			t.Errorf("%s: %d %s, %v; want %d, code %d", name, status, body, err, c.status, c.code)
		}
		if now, _ := e.TopicSettings(c.topic); now.Queues != c.queues { // none without the topic
			t.Errorf("%s: the topic has %d queues, want %d", name, now.Queues, c.queues)
		}
	}
}

// A dry run counts and changes nothing.
func TestPurgeTopic(t *testing.T) {
	t.Parallel()
	for query, left := range map[string]int64{"": 0, "dry_run=true": 3, "dry_run=false": 0} {
		h, e := newHandlers(t, engine.Options{}, "")
		status, body, err := call(h.PurgeTopic, "old", query, "", "")
		if err != nil || status != 200 || !strings.Contains(body, `"messages":3`) {
			t.Errorf("%q: %d %s, %v", query, status, body, err)
		}
		if now, err := e.Topic("old"); err != nil || now.StoredMessages != left {
			t.Errorf("%q: %d messages are left, want %d, %v", query, now.StoredMessages, left, err)
		}
	}
}

// Snapshots need a configured directory, and each has a directory of its own in it.
func TestPostSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, _ := newHandlers(t, engine.Options{Dir: filepath.Join(dir, "data")}, "")
	if _, _, err := call(h.PostSnapshot, "", "", "", ""); codeOf(err) != tidegate.CodeBadRequest || !strings.Contains(err.Error(), "snapshot_dir") {
		t.Errorf("without a directory: %v", err)
	}
	h, _ = newHandlers(t, engine.Options{Dir: filepath.Join(dir, "other")}, dir)
	for n := 1; n <= 2; n++ {
		if status, body, err := call(h.PostSnapshot, "", "", "", ""); err != nil || status != 201 || !strings.Contains(body, `"path":"`+dir+`/snapshot-`) {
			t.Errorf("%d %s, %v", status, body, err)
		}
		if found, err := filepath.Glob(dir + "/snapshot-*"); err != nil || len(found) != n {
			t.Errorf("%d snapshots left %v, %v", n, found, err)
		}
	}
}

// The limits that reject sends are apart from the others.
func TestGetThrottle(t *testing.T) {
	t.Parallel()
	h, e := newHandlers(t, engine.Options{MaxBacklog: settings.Limit{Messages: 3}}, "")
	if _, err := e.PutTopic(t.Context(), "other", settings.Topic{}, nil); err != nil {
		t.Fatal(err)
	}
	_, body, err := call(h.GetThrottle, "", "", "", "")
	var got status.Throttles
	if err := errors.Join(err, json.Unmarshal([]byte(body), &got)); err != nil {
		t.Fatal(err)
	}
	if len(got.Throttles) != 1 || got.Throttles[0].Subject != "old" || !got.Throttles[0].On {
		t.Errorf("limits that reject sends: %+v, want that of topic old", got.Throttles)
	}
	if len(got.NotReached) == 0 || slices.ContainsFunc(got.NotReached, func(l status.LimitState) bool { return l.On }) {
		t.Errorf("other limits: %+v", got.NotReached)
	}
}

// A list without a query has all topics, and a list with a query has pages of 100.
func TestListTopics(t *testing.T) {
	t.Parallel()
	h, e := newHandlers(t, engine.Options{}, "")
	for _, name := range []string{"orders", "orders.eu", "payments"} {
		if _, err := e.PutTopic(t.Context(), name, settings.Topic{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 120 {
		if _, err := e.PutTopic(t.Context(), fmt.Sprintf("x%03d", i), settings.Topic{Queues: 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for query, c := range map[string]struct {
		first, last string
		n           int
		next        string
		code        tidegate.Code
	}{
		"":                       {"old", "x119", 124, "", 0},
		"limit=2&after=old":      {"orders", "orders.eu", 2, "orders.eu", 0},
		"match=orders*":          {"orders", "orders.eu", 2, "", 0},
		"match=x*":               {"x000", "x099", 100, "x099", 0},
		"match=nothing":          {},
		"match=[":                {code: tidegate.CodeBadRequest},
		"limit=1001":             {code: tidegate.CodeBadRequest},
		"limit=-1":               {code: tidegate.CodeBadRequest},
		"view=all":               {code: tidegate.CodeBadRequest},
		"sort=name":              {code: tidegate.CodeBadRequest}, // of the summary view only
		"view=summary&sort=size": {code: tidegate.CodeBadRequest},
		"view=summary&state=bad": {code: tidegate.CodeBadRequest},
		"unknown=1":              {code: tidegate.CodeBadRequest},
	} {
		code, body, err := call(h.ListTopics, "", query, "", "")
		if codeOf(err) != c.code || c.code == 0 && code != 200 {
			t.Errorf("%q: %d %s, %v; want code %d", query, code, body, err, c.code)
		}
		if c.code != 0 {
			continue
		}
		var got topicList
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.Topics == nil {
			t.Fatalf("%q: %s, %v", query, body, err)
		}
		if len(got.Topics) != c.n || got.Next != c.next || c.n > 0 && (got.Topics[0].Name != c.first || got.Topics[c.n-1].Name != c.last) {
			t.Errorf("%q: %d topics, next %q: %.200s", query, len(got.Topics), got.Next, body)
		}
	}
}

// A removal of dead letters has a selection, or all=true, and not both.
func TestPurgeDeadLetters(t *testing.T) {
	t.Parallel()
	all := []string{"id-0", "id-1", "id-2"}
	for query, c := range map[string]struct {
		left []string
		code tidegate.Code
	}{
		"":                               {all, tidegate.CodeBadRequest},
		"all=true":                       {nil, 0},
		"topic=old":                      {nil, 0},
		"topic=other":                    {all, 0},
		"topic=old&all=true":             {all, tidegate.CodeBadRequest},
		"topic=old&dry_run=true":         {all, 0},
		"topic=old&limit=1":              {all[1:], 0},
		"topic=old&limit=1&order=newest": {all[:2], 0},
		"topic=old&order=largest":        {all, tidegate.CodeBadRequest},
	} {
		h, e := newHandlers(t, engine.Options{}, "")
		killed(t, e)
		if _, _, err := call(h.PurgeDeadLetters, "", query, "", ""); codeOf(err) != c.code {
			t.Errorf("%q: %v, want code %d", query, err, c.code)
		}
		if got := letters(t, e); !slices.Equal(got, c.left) {
			t.Errorf("%q: the letters %q are left, want %q", query, got, c.left)
		}
	}
}

// A throttle is an error of a redrive only if it moved nothing.
func TestRedriveThatIsThrottled(t *testing.T) {
	t.Parallel()
	h, e := newHandlers(t, engine.Options{}, "")
	killed(t, e)
	if _, _, err := call(h.RedriveDeadLetters, "", "", `{"message_ids":[]}`, ""); codeOf(err) != tidegate.CodeBadRequest || len(letters(t, e)) != 3 {
		t.Errorf("no IDs: %v, %q are left", err, letters(t, e))
	}
	if _, err := e.PutTopic(t.Context(), "a", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 2}}, nil); err != nil {
		t.Fatal(err)
	}
	status, body, err := call(h.RedriveDeadLetters, "", "", `{"to":"a"}`, "")
	if err != nil || status != 200 || !strings.Contains(body, `"redriven":2`) {
		t.Errorf("after 2 letters: %d %s, %v", status, body, err)
	}
	if _, _, err := call(h.RedriveDeadLetters, "", "", `{"to":"a"}`, ""); codeOf(err) != tidegate.CodeTooManyRequests || len(letters(t, e)) != 1 {
		t.Errorf("at once: %v, %q are left", err, letters(t, e))
	}
}
