package routes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

// fakeEngine records its calls as text. It has the topic "old" with the revision "1".
type fakeEngine struct {
	AdminEngine // nil: the tests call no other method

	calls    []string
	redriven int64 // by a redrive
	failing  error // of a redrive
}

func (e *fakeEngine) note(format string, args ...any) {
	e.calls = append(e.calls, fmt.Sprintf(format, args...))
}

func (*fakeEngine) TopicSettings(name string) (settings.Topic, error) {
	if name == "old" {
		return settings.Topic{}, nil
	}
	return settings.Topic{}, &tidegate.Error{Code: tidegate.CodeTopicNotFound}
}

func (e *fakeEngine) PutTopicIf(_ context.Context, name string, c settings.Topic, may func(string) error) (status.Topic, error) {
	revision := ""
	if name == "old" {
		revision = "1"
	}
	if may != nil {
		if err := may(revision); err != nil {
			return status.Topic{}, err
		}
	}
	e.note("put %s queues %d", name, c.Queues)
	return status.Topic{Name: name, Revision: "2"}, nil
}

func (e *fakeEngine) PurgeTopic(_ context.Context, name string) (status.Backlog, error) {
	e.note("purge %s", name)
	return status.Backlog{Messages: 3}, nil
}

func (e *fakeEngine) CountPurge(name string) (status.Backlog, error) {
	e.note("count %s", name)
	return status.Backlog{Messages: 3}, nil
}

func (e *fakeEngine) Snapshot(_ context.Context, dir string) error {
	e.note("snapshot %s", dir[:strings.LastIndex(dir, "/")])
	return nil
}

func (*fakeEngine) LimitsRevision() (settings.Limits, string) { return settings.Limits{}, "1" }

func (*fakeEngine) Throttles() []status.LimitState {
	return []status.LimitState{{Throttle: status.Throttle{Limit: "reached"}, On: true}, {Throttle: status.Throttle{Limit: "other"}}}
}

func (*fakeEngine) Topics() []status.Topic { return nil }

func (e *fakeEngine) TopicsPage(after string, limit int, wanted func(string) bool) (page []status.Topic, more bool) {
	e.note("page after %q limit %d", after, limit)
	for _, name := range []string{"orders", "orders.eu", "payments"} {
		if wanted(name) {
			page = append(page, status.Topic{Name: name})
		}
	}
	return page, len(page) > 1
}

func (e *fakeEngine) PurgeDeadLetters(_ context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterPurge, error) {
	e.note("purge letters of %s: topic %q dry %t newest %t", group, sel.Topic, sel.DryRun, sel.Newest)
	return status.DeadLetterPurge{}, nil
}

func (e *fakeEngine) RedriveDeadLetters(_ context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterRedrive, error) {
	e.note("redrive letters of %s: to %q", group, sel.To)
	return status.DeadLetterRedrive{Redriven: e.redriven}, e.failing
}

type handler = func(w http.ResponseWriter, r *http.Request) (int, any, error)

// noSurvey is an engine without topics and clients.
type noSurvey struct{}

func (noSurvey) Survey() *serving.Survey       { return &serving.Survey{} }
func (noSurvey) CountGroups() map[string]int64 { return nil }

// newHandlers returns the handlers of a fake engine, with a directory of snapshots or "".
func newHandlers(snapshots string) (*Admin, *fakeEngine) {
	e := &fakeEngine{}
	g := auth.NewGate(slog.New(slog.DiscardHandler), auth.Hosts{})
	return NewAdmin(e, g, snapshots, 1<<20, NewShared(noSurvey{}, noSurvey{})), e
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
		call               string
	}{
		"new":                       {"new", `{"queues":2}`, "", 201, 0, "put new queues 2"},
		"changed":                   {"old", `{"queues":2}`, "", 200, 0, "put old queues 2"},
		"default queues":            {"new", `{}`, "", 201, 0, "put new queues 0"},
		"no queues":                 {"new", `{"queues":0}`, "", 0, tidegate.CodeBadRequest, ""},
		"the revision":              {"old", `{}`, `"1"`, 200, 0, "put old queues 0"},
		"another revision":          {"old", `{}`, `"7"`, 0, protocol.CodePreconditionFailed, ""},
		"any revision of a new one": {"new", `{}`, `*`, 0, protocol.CodePreconditionFailed, ""},
		"a malformed revision":      {"old", `{}`, `1`, 0, tidegate.CodeBadRequest, ""},
		"an unknown key":            {"new", `{"queue":2}`, "", 0, tidegate.CodeBadRequest, ""},
	} {
		h, e := newHandlers("")
		status, body, err := call(h.PutTopic, c.topic, "", c.body, c.match)
		if codeOf(err) != c.code || c.code == 0 && status != c.status {
			t.Errorf("%s: %d %s, %v; want %d, code %d", name, status, body, err, c.status, c.code)
		}
		if got := strings.Join(e.calls, ", "); got != c.call {
			t.Errorf("%s: the engine got %q, want %q", name, got, c.call)
		}
	}
}

// A dry run counts and changes nothing.
func TestPurgeTopic(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{"": "purge a", "dry_run=true": "count a", "dry_run=false": "purge a"} {
		h, e := newHandlers("")
		status, body, err := call(h.PurgeTopic, "a", query, "", "")
		if err != nil || status != 200 || !strings.Contains(body, `"messages":3`) {
			t.Errorf("%q: %d %s, %v", query, status, body, err)
		}
		if got := strings.Join(e.calls, ", "); got != want {
			t.Errorf("%q: the engine got %q, want %q", query, got, want)
		}
	}
}

// Snapshots need a configured directory, and each has a directory of its own in it.
func TestPostSnapshot(t *testing.T) {
	t.Parallel()
	h, _ := newHandlers("")
	if _, _, err := call(h.PostSnapshot, "", "", "", ""); codeOf(err) != tidegate.CodeBadRequest || !strings.Contains(err.Error(), "snapshot_dir") {
		t.Errorf("without a directory: %v", err)
	}
	h, e := newHandlers("/snapshots")
	if status, body, err := call(h.PostSnapshot, "", "", "", ""); err != nil || status != 201 || !strings.Contains(body, `"path":"/snapshots/snapshot-`) {
		t.Errorf("%d %s, %v", status, body, err)
	}
	if len(e.calls) != 1 || e.calls[0] != "snapshot /snapshots" {
		t.Errorf("the engine got %q", e.calls)
	}
}

// The limits that reject sends are apart from the others.
func TestGetThrottle(t *testing.T) {
	t.Parallel()
	h, _ := newHandlers("")
	status, body, err := call(h.GetThrottle, "", "", "", "")
	if err != nil || status != 200 || !strings.Contains(body, `"reached"`) || strings.Index(body, `"reached"`) > strings.Index(body, `"other"`) {
		t.Errorf("%d %s, %v", status, body, err)
	}
}

// A list without a query has all topics, and a list with a query has pages of 100. An empty list is
// [] and not null.
func TestListTopics(t *testing.T) {
	t.Parallel()
	for query, c := range map[string]struct {
		call, want string
		code       tidegate.Code
	}{
		"":                       {"", `{"topics":[]}`, 0},
		"limit=2&after=a":        {`page after "a" limit 2`, `"next":"payments"`, 0},
		"match=orders*":          {`page after "" limit 100`, `"next":"orders.eu"`, 0},
		"match=nothing":          {`page after "" limit 100`, `{"topics":[]}`, 0},
		"match=[":                {code: tidegate.CodeBadRequest},
		"limit=1001":             {code: tidegate.CodeBadRequest},
		"limit=-1":               {code: tidegate.CodeBadRequest},
		"view=all":               {code: tidegate.CodeBadRequest},
		"sort=name":              {code: tidegate.CodeBadRequest}, // of the summary view only
		"view=summary&sort=size": {code: tidegate.CodeBadRequest},
		"view=summary&state=bad": {code: tidegate.CodeBadRequest},
		"unknown=1":              {code: tidegate.CodeBadRequest},
	} {
		h, e := newHandlers("")
		status, body, err := call(h.ListTopics, "", query, "", "")
		if codeOf(err) != c.code || c.code == 0 && (status != 200 || !strings.Contains(body, c.want)) {
			t.Errorf("%q: %d %s, %v; want %s, code %d", query, status, body, err, c.want, c.code)
		}
		if got := strings.Join(e.calls, ", "); got != c.call {
			t.Errorf("%q: the engine got %q, want %q", query, got, c.call)
		}
	}
}

// A removal of dead letters has a selection, or all=true, and not both.
func TestPurgeDeadLetters(t *testing.T) {
	t.Parallel()
	for query, c := range map[string]struct {
		call string
		code tidegate.Code
	}{
		"":                      {"", tidegate.CodeBadRequest},
		"all=true":              {`purge letters of g: topic "" dry false newest false`, 0},
		"topic=a":               {`purge letters of g: topic "a" dry false newest false`, 0},
		"topic=a&all=true":      {"", tidegate.CodeBadRequest},
		"topic=a&dry_run=true":  {`purge letters of g: topic "a" dry true newest false`, 0},
		"topic=a&order=newest":  {`purge letters of g: topic "a" dry false newest true`, 0},
		"topic=a&order=largest": {"", tidegate.CodeBadRequest},
	} {
		h, e := newHandlers("")
		if _, _, err := call(h.PurgeDeadLetters, "", query, "", ""); codeOf(err) != c.code {
			t.Errorf("%q: %v, want code %d", query, err, c.code)
		}
		if got := strings.Join(e.calls, ", "); got != c.call {
			t.Errorf("%q: the engine got %q, want %q", query, got, c.call)
		}
	}
}

// A throttle is an error of a redrive only if it moved nothing.
func TestRedriveThatIsThrottled(t *testing.T) {
	t.Parallel()
	for redriven, want := range map[int64]tidegate.Code{0: tidegate.CodeTooManyRequests, 5: 0} {
		h, e := newHandlers("")
		e.redriven, e.failing = redriven, &tidegate.Error{Code: tidegate.CodeTooManyRequests}
		if status, body, err := call(h.RedriveDeadLetters, "", "", `{"to":"a"}`, ""); codeOf(err) != want {
			t.Errorf("after %d letters: %d %s, %v; want code %d", redriven, status, body, err, want)
		}
	}
	h, e := newHandlers("")
	if _, _, err := call(h.RedriveDeadLetters, "", "", `{"message_ids":[]}`, ""); codeOf(err) != tidegate.CodeBadRequest || len(e.calls) > 0 {
		t.Errorf("no IDs: %v, %q", err, e.calls)
	}
}
