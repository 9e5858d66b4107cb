package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// fakeMessageEngine records its calls as text, and returns prepared results.
type fakeMessageEngine struct {
	messageEngine // nil: the tests call no other method

	calls    []string
	settled  transport.RetryResult
	failing  map[string]error // by handle, or by message ID
	received []*tidegate.Delivery
}

func (e *fakeMessageEngine) note(format string, args ...any) {
	e.calls = append(e.calls, fmt.Sprintf(format, args...))
}

func (e *fakeMessageEngine) Append(_ context.Context, ms []engine.Incoming) []transport.SendResult {
	out := make([]transport.SendResult, len(ms))
	for i, m := range ms {
		e.note("append %s %s %s", m.ID, m.Topic, m.Body)
		if out[i].Err = e.failing[m.ID]; out[i].Err == nil {
			out[i].Receipt = tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Queue: 1, Offset: int64(i)}
		}
	}
	return out
}

func (e *fakeMessageEngine) Poll(_ context.Context, p engine.Request) ([]*tidegate.Delivery, error) {
	e.note("poll %s %s max %d wait %v invisible %v filter %s sql %t", p.Group, p.Topic, p.Max, p.Wait, p.InvisibleDuration, p.Filter.Expression, p.Filter.SQL)
	return e.received, nil
}

func (*fakeMessageEngine) InvisibleBounds() (least, most time.Duration) {
	return time.Second, time.Hour
}

func (e *fakeMessageEngine) Ack(_ context.Context, ds []*tidegate.Delivery) []error {
	out := make([]error, len(ds))
	for i, d := range ds {
		e.note("ack %s %s", d.ConsumerGroup, d.Handle)
		out[i] = e.failing[d.Handle]
	}
	return out
}

func (e *fakeMessageEngine) Extend(_ context.Context, d *tidegate.Delivery, dur time.Duration, _ bool) (string, error) {
	e.note("change %s %s %v", d.ConsumerGroup, d.Handle, dur)
	return "next", e.failing[d.Handle]
}

func (e *fakeMessageEngine) Settle(_ context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	e.note("%v %s %s attempt %d delay %v: %s", v.Kind, d.ConsumerGroup, d.Handle, d.Attempt, v.Delay, v.Reason)
	return e.settled, e.failing[d.Handle]
}

func (e *fakeMessageEngine) ReconsumeLater(_ context.Context, d *tidegate.Delivery, m transport.Verdict) (engine.Reconsumed, error) {
	e.note("later %s %s delay %v level %d", d.ConsumerGroup, d.Handle, m.Delay, m.Level)
	return engine.Reconsumed{}, e.failing[d.Handle]
}

func (e *fakeMessageEngine) Group(name string) (status.Group, error) {
	return status.Group{}, e.failing["group "+name]
}

// RetryInterval returns ten seconds for each attempt.
func (*fakeMessageEngine) RetryInterval(d *tidegate.Delivery) (time.Duration, error) {
	return time.Duration(d.Attempt) * 10 * time.Second, nil
}

func (e *fakeMessageEngine) Recall(_ context.Context, topic, handle string) (string, error) {
	e.note("recall %s %s", topic, handle)
	return "id", e.failing[handle]
}

// fakeServer calls the request without middleware, and records its operation.
type fakeServer struct {
	calls []Call
}

func (s *fakeServer) through(ctx context.Context, c Call, do func(context.Context) error) error {
	s.calls = append(s.calls, c)
	return do(ctx)
}

func (*fakeServer) parkHTTP(*http.Request) (admission.Hold, error) {
	return admission.NewBudget("waiting", 1<<20, 0).Hold("test", nil), nil
}

func (*fakeServer) enlistHTTP(ctx context.Context, _ *http.Request, _ string, _ *engine.Request) (context.Context, *engine.Holder, func(bool), error) {
	return ctx, nil, func(bool) {}, nil
}

func (*fakeServer) release(context.Context, []*tidegate.Delivery) {}

// env has handlers on a fake engine.
type env struct {
	messageRoutes
	engine *fakeMessageEngine
	server *fakeServer
}

func newEnv(t *testing.T) *env {
	e := &env{engine: &fakeMessageEngine{failing: map[string]error{}}, server: &fakeServer{}}
	e.messageRoutes = messageRoutes{
		Engine: e.engine, server: e.server, Gate: auth.NewGate(slog.New(slog.DiscardHandler), auth.Hosts{}),
		Life: t.Context(), Bodies: admission.NewBudget("bodies", 256<<20, 0), MaxBody: 1 << 20, MaxLongPolling: 20 * time.Second,
	}
	return e
}

type messageHandler = func(w http.ResponseWriter, r *http.Request) (int, any, error)

// call makes a request of a handler, and returns the status and the body of a response that it
// returns or writes.
func (e *env) call(f messageHandler, body string) (int, string, error) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.SetPathValue("group", "g")
	r.SetPathValue("topic", "t")
	hold := e.Bodies.Hold("test", nil)
	defer hold.Release()
	w := httptest.NewRecorder()
	code, v, err := f(w, r.WithContext(admission.WithHold(r.Context(), &hold)))
	if code == 0 {
		return w.Code, w.Body.String(), err
	}
	raw, bad := json.Marshal(v)
	return code, string(raw), errors.Join(err, bad)
}

// codeOfMessages returns the code of an error, and 0 for nil.
func codeOfMessages(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}

type handler = func(w http.ResponseWriter, r *http.Request) (int, any, error)

type noClients struct{}

func (noClients) CountGroups() map[string]int64 { return nil }

// newHandlers returns the handlers of an engine with the topic "old" of one queue with 3 messages.
func newHandlers(t *testing.T, o engine.Options, snapshots string) (*adminRoutes, *engine.Engine) {
	t.Helper()
	o.MinInvisibleDuration = time.Nanosecond
	e := assert.Value(engine.Open(o))(t)
	t.Cleanup(func() { e.Close() })
	assert.Must(t, assert.Err(e.PutTopic(t.Context(), "old", settings.Topic{Queues: 1}, nil)))
	for i := range 3 {
		m := &tidegate.Message{ID: fmt.Sprint("id-", i), Topic: "old", Body: []byte("x")}
		assert.Must(t, e.Send(t.Context(), []*tidegate.Message{m})[0].Err)
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
		assert.Must(t, assert.Err(e.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"})))
	}
}

// letters returns the IDs of the dead letters of the group "g".
func letters(t *testing.T, e *engine.Engine) (ids []string) {
	t.Helper()
	page := assert.Value(e.DeadLetters("g", status.DeadLetterQuery{}, 0))(t)
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
		assert.Must(t, err)
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
	assert.Must(t, assert.Err(e.PutTopic(t.Context(), "other", settings.Topic{}, nil)))
	_, body, err := call(h.GetThrottle, "", "", "", "")
	var got status.Throttles
	assert.Must(t, errors.Join(err, json.Unmarshal([]byte(body), &got)))
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
		assert.Must(t, assert.Err(e.PutTopic(t.Context(), name, settings.Topic{}, nil)))
	}
	for i := range 120 {
		assert.Must(t, assert.Err(e.PutTopic(t.Context(), fmt.Sprintf("x%03d", i), settings.Topic{Queues: 1}, nil)))
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

// Highest returns the first rows of a stable sort.
func TestHighest(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		rows := make([][2]int, r.IntN(40)) // a value and its place
		for i := range rows {
			rows[i] = [2]int{r.IntN(8) - 2, i}
		}
		want := slices.Clone(rows)
		slices.SortStableFunc(want, func(x, y [2]int) int { return y[0] - x[0] })
		want = slices.DeleteFunc(want, func(x [2]int) bool { return x[0] <= 0 })
		n := 1 + r.IntN(12)
		if got := highest(rows, n, func(x *[2]int) int { return x[0] }); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Fatalf("the highest %d of %v are %v, want %v", n, rows, got, want)
		}
	}
}

// Each list of problems has its count, and at most ten rows.
func TestFill(t *testing.T) {
	t.Parallel()
	s := &engine.Survey{At: time.Unix(1, 0)}
	for i := range int64(30) {
		held := &status.Holding{Client: "c", Messages: 1, Since: s.At.Add(-time.Duration(i) * 10 * time.Second)}
		s.Groups = append(s.Groups, status.GroupSummary{Group: string(rune('a' + i)), Parked: i % 3, UndeliveredMS: i * 5000, DeadLettersStored: i / 29, Held: held})
		s.Throttles = append(s.Throttles, status.LimitState{On: true})
	}
	var o status.Overview
	var f listFiller
	f.Fill(&o, &engine.Survey{}) // of another moment
	assert.That(t, o.Wrong.Parked.Count == 0, "without groups: %+v", o.Wrong)
	for range 2 {
		f.Fill(&o, s)
	}
	w := o.Wrong
	assert.That(t, w.Throttles.Count == 30 && len(w.Throttles.First) == 10, "throttles %+v", w.Throttles)
	assert.That(t, w.Parked.Count == 20 && len(w.Parked.First) == 10 && w.Parked.First[0].Parked == 2, "parked %+v", w.Parked)
	if w.Behind.Count != 18 || w.Behind.First[0].UndeliveredMS != 145_000 { // from 60 s on
		t.Errorf("behind %+v", w.Behind)
	}
	retried := status.GroupSummary{Group: "retried", Ready: 1, OldestMS: 200_000} // its message was delivered before
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{retried}}); o.Wrong.Behind.Count != 1 {
		t.Errorf("without a consumer: behind %+v", o.Wrong.Behind)
	}
	blocked := status.GroupSummary{Group: "blocked", BlockedGroups: 2, Blocked: 7}
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{retried, blocked}}); o.Wrong.Blocked.Count != 1 || o.Wrong.Blocked.First[0] != blocked {
		t.Errorf("blocked %+v", o.Wrong.Blocked)
	}
	waits, works := retried, retried
	waits.Waiting, works.Inflight = 1, 1
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{waits, works, {OldestMS: 200_000}}}); o.Wrong.Behind.Count != 0 {
		t.Errorf("with a consumer, or without a ready message: behind %+v", o.Wrong.Behind)
	}
	if w.Held.Count != 24 || w.Held.First[0].Group != string(rune('a'+29)) { // from 60 s on
		t.Errorf("held %+v", w.Held)
	}
	assert.That(t, w.DeadLetters.Count == 1 && len(w.DeadLetters.First) == 1, "dead letters %+v", w.DeadLetters)
	if top := o.Top.Groups["waiting_retry"]; top == nil || len(top) != 0 {
		t.Errorf("the top of counters that are 0 is %v, want an empty list", top)
	}
}

// An fakeOverviewEngine computes surveys.
type fakeOverviewEngine func() *engine.Survey

func (e fakeOverviewEngine) Survey() *engine.Survey { return e() }

// clientCounts have the numbers of clientCounts by group.
type clientCounts map[string]int64

func (c clientCounts) CountGroups() map[string]int64 { return c }

// A survey has the number of clients of each group.
func TestSharedCountsClients(t *testing.T) {
	t.Parallel()
	s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
		return &engine.Survey{Groups: []status.GroupSummary{{Group: "a", Topic: "s"}, {Group: "a", Topic: "t"}, {Group: "b", Topic: "t"}}}
	}), clientCounts{"a": 2, "c": 1})
	v := assert.Value(s.Get(t.Context()))(t)
	if g := v.Groups; g[0].Clients != 2 || g[1].Clients != 2 || g[2].Clients != 0 {
		t.Errorf("the groups are %+v", g)
	}
}

// All calls within a second share one survey, also the calls during its computation; without
// callers there is none.
func TestSharedOncePerSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
			n++
			at := time.Now()
			time.Sleep(100 * time.Millisecond)
			return &engine.Survey{At: at}
		}), clientCounts{})
		for range 50 {
			go func() {
				for range 10 {
					if v, err := s.Get(t.Context()); err != nil || time.Since(v.At) > maxAge+100*time.Millisecond {
						t.Errorf("a survey of %v, %v", v, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n != 2 { // at 0 and at 1 s
			t.Errorf("%d surveys, want 2", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		go func() { _, _ = s.Get(t.Context()) }()
		synctest.Wait()
		assert.Is(t, "a caller that gave up got", assert.Err(s.Get(ctx)), context.DeadlineExceeded)
		time.Sleep(time.Second)
	})
}

// After a panic of the engine the next caller computes the survey.
func TestSharedAfterPanic(t *testing.T) {
	t.Parallel()
	first := true
	s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
		if first {
			first = false
			panic("test")
		}
		return &engine.Survey{At: time.Now()}
	}), clientCounts{})
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Get(t.Context())
		t.Error("the panic was swallowed")
	}()
	if v, err := s.Get(t.Context()); v == nil || err != nil {
		t.Errorf("after a panic: %v, %v", v, err)
	}
}

// After a change the next caller gets a new survey, also if one is under way that began before it.
func TestSharedExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int64
		s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
			seen := changes.Load()
			time.Sleep(100 * time.Millisecond)
			return &engine.Survey{At: time.Now(), Totals: status.Totals{Topics: seen}}
		}), clientCounts{})
		expect := func(when string, want int) {
			t.Helper()
			if v, err := s.Get(t.Context()); err != nil || v.Totals.Topics != int64(want) {
				t.Errorf("%s: %+v, %v; want %d topics", when, v, err, want)
			}
		}
		expect("at first", 0)
		changes.Add(1)
		expect("within a second", 0)
		s.Expire()
		expect("after a change", 1)
		s.Expire()
		go func() { _, _ = s.Get(t.Context()) }()
		time.Sleep(50 * time.Millisecond)
		changes.Add(1)
		s.Expire()
		expect("after a change during a survey", 2)
		expect("after it", 2)
	})
}

// The pages of a list have the rows of a sort of all wanted rows, once and in order. This holds for
// each order, condition and size of a page.
func TestSelectPages(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		rows := make([]status.GroupSummary, r.IntN(60))
		for i := range rows {
			rows[i] = status.GroupSummary{Group: fmt.Sprintf("g-%02d", i/3), Topic: fmt.Sprintf("t.%d", i%3), Ready: r.Int64N(5)}
		}
		q := summaryQuery{Limit: 1 + r.IntN(20), Descending: r.IntN(2) == 0}
		var wanted func(*status.GroupSummary) bool
		var value func(*status.GroupSummary) float64
		if r.IntN(3) > 0 {
			value = groupValues["ready"]
		}
		if r.IntN(2) == 0 {
			wanted = func(g *status.GroupSummary) bool { return g.Ready != 2 }
		}
		want := slices.Clone(rows)
		if wanted != nil {
			want = slices.DeleteFunc(want, func(g status.GroupSummary) bool { return g.Ready == 2 })
		}
		switch {
		case value != nil && q.Descending:
			slices.SortStableFunc(want, func(x, y status.GroupSummary) int { return int(y.Ready - x.Ready) })
		case value != nil:
			slices.SortStableFunc(want, func(x, y status.GroupSummary) int { return int(x.Ready - y.Ready) })
		case q.Descending:
			slices.SortFunc(want, func(x, y status.GroupSummary) int {
				return strings.Compare(y.Group+"/"+y.Topic, x.Group+"/"+x.Topic)
			})
		}
		got := []status.GroupSummary{}
		for more := true; more; more = q.After != "" {
			page, ok := selectPage(rows, wanted, value, q)
			if !ok || page.Total != int64(len(want)) || len(page.Rows) > q.Limit {
				t.Fatalf("a page of %d: %+v, %v", q.Limit, page, ok)
			}
			got, q.After = append(got, page.Rows...), page.Next
		}
		assert.MustThat(t, slices.Equal(got, want), "%+v\nhas the pages\n%+v, want\n%+v", q, got, want)
	}
	if _, ok := selectPage([]status.TopicSummary{{}}, nil, nil, summaryQuery{Limit: 1, After: "no cursor"}); ok {
		t.Error("an invalid cursor was accepted")
	}
}

// Each state selects the rows of its name.
func TestStates(t *testing.T) {
	t.Parallel()
	busy := status.Backlog{Messages: 1}
	topics := map[string][2]status.TopicSummary{ // one that has the state, and one that has not
		"throttled": {{Throttle: &status.Throttle{}}, {Backlog: busy}},
		"backlog":   {{Backlog: busy}, {Stored: busy}},
		"delayed":   {{Delayed: busy}, {Stored: busy}},
		"empty":     {{Name: "t"}, {Half: 1}},
	}
	for state, f := range topicStates {
		if c := topics[state]; !f(&c[0]) || f(&c[1]) {
			t.Errorf("topics of state %s: %v, %v", state, f(&c[0]), f(&c[1]))
		}
	}
	groups := map[string][2]status.GroupSummary{
		"backlog": {{Backlog: busy}, {Parked: 1}},
		"behind":  {{UndeliveredMS: 60_000}, {UndeliveredMS: 59_999, OldestMS: 1e9}},
		"retry":   {{WaitingRetry: 1}, {Inflight: 1}},
		"parked":  {{Parked: 1}, {Backlog: busy}},
		"blocked": {{BlockedGroups: 1}, {Backlog: busy, Parked: 1}},
		"held":    {{Held: &status.Holding{Since: time.Now().Add(-time.Minute)}}, {Inflight: 1, Held: &status.Holding{Since: time.Now()}}},
		"dead":    {{DeadLettersStored: 1}, {DeadLetters: 1, DeadLettersHour: 1}},
		"idle":    {{Backlog: busy}, {Backlog: busy, Waiting: 1}},
	}
	for state, f := range groupStates {
		if c := groups[state]; !f(&c[0]) || f(&c[1]) {
			t.Errorf("groups of state %s: %v, %v", state, f(&c[0]), f(&c[1]))
		}
	}
}

// The header If-Match as in RFC 9110, 13.1.1. The revision is "a"; code 0 means that the change may
// happen.
func TestIfMatch(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		now    string
		code   int
	}{
		"none":             {nil, "a", 0},
		"the same":         {[]string{`"a"`}, "a", 0},
		"another":          {[]string{`"b"`}, "a", 42800},
		"a list":           {[]string{`"b", "a"`}, "a", 0},
		"two headers":      {[]string{`"b"`, `"a"`}, "a", 0},
		"weak":             {[]string{`W/"a"`}, "a", 42800}, // never equal in a strong comparison
		"any":              {[]string{"*"}, "a", 0},
		"any, nothing":     {[]string{"*"}, "", 42800},
		"nothing":          {[]string{`"a"`}, "", 42800},
		"empty, nothing":   {[]string{`""`}, "", 42800},
		"none, nothing":    {nil, "", 0},
		"without quotes":   {[]string{"a"}, "a", 40000},
		"a quote in a tag": {[]string{`"a""`}, "a", 40000},
		"one quote":        {[]string{`"`}, "a", 40000},
		"empty":            {[]string{""}, "a", 40000},
		"any in a list":    {[]string{`"a", *`}, "a", 40000},
	} {
		r := httptest.NewRequest("PUT", "/v1/topics/orders", nil)
		r.Header["If-Match"] = c.header
		may, err := ifMatch(r, "topic", "orders")
		if err == nil && may != nil {
			err = may(c.now)
		}
		code := 0
		if err != nil {
			code = int(refusal.CodeOf(err))
		}
		assert.That(t, code == c.code, "%s: %v, want code %d", name, err, c.code)
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// filled returns a ring to which n records were added, one a second; the subject is its number,
// from 1.
func filled(n int) *auditRing {
	g := &auditRing{}
	for i := 1; i <= n; i++ {
		g.Add(&status.AuditRecord{
			Time: epoch.Add(time.Duration(i) * time.Second), Key: fmt.Sprint("key-", i%2), Operation: fmt.Sprint("op-", i%3), Subject: fmt.Sprint(i),
		})
	}
	return g
}

// all returns the subjects of all pages of a query.
func all(t *testing.T, g *auditRing, q status.AuditQuery) (subjects []string) {
	t.Helper()
	for {
		page := assert.Value(g.Page(&q))(t)
		if q.Limit > 0 && len(page.Records) > q.Limit {
			t.Fatalf("a page of %d has %d records", q.Limit, len(page.Records))
		}
		for _, r := range page.Records {
			subjects = append(subjects, r.Subject)
		}
		if q.After = page.Next; q.After == "" {
			return subjects
		}
	}
}

func numbers(from, down, step int) (out []string) {
	for i := from; i >= down; i -= step {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// Pages of any size have each record that is kept once, the newest first.
func TestPages(t *testing.T) {
	for _, n := range []int{0, 1, 9, auditCapacity - 1, auditCapacity, auditCapacity + 1, 2*auditCapacity + 7} {
		want := numbers(n, max(1, n-9_999), 1) // 10 000 records are kept
		g := filled(n)
		for _, limit := range []int{0, 1000, 7} {
			if got := all(t, g, status.AuditQuery{Limit: limit}); !slices.Equal(got, want) {
				t.Errorf("%d records in pages of %d: %d came, want %d", n, limit, len(got), len(want))
			}
		}
	}
}

func TestFilters(t *testing.T) {
	g := filled(60)
	for name, c := range map[string]struct {
		q    status.AuditQuery
		want []string
	}{
		"since":       {status.AuditQuery{Since: epoch.Add(58 * time.Second)}, numbers(60, 58, 1)},
		"later":       {status.AuditQuery{Since: epoch.Add(time.Hour)}, nil},
		"key":         {status.AuditQuery{Key: "key-0"}, numbers(60, 1, 2)},
		"operation":   {status.AuditQuery{Operation: "op-0"}, numbers(60, 1, 3)},
		"subject":     {status.AuditQuery{Subject: "17"}, []string{"17"}},
		"together":    {status.AuditQuery{Key: "key-0", Operation: "op-0"}, numbers(60, 1, 6)},
		"a part":      {status.AuditQuery{Key: "key"}, nil},
		"a last page": {status.AuditQuery{After: "3"}, []string{"2", "1"}},
		"newer":       {status.AuditQuery{After: "1000", Since: epoch.Add(59 * time.Second)}, []string{"60", "59"}},
	} {
		for _, limit := range []int{0, 1, 3} {
			c.q.Limit = limit
			if got := all(t, g, c.q); !slices.Equal(got, c.want) {
				t.Errorf("%s, pages of %d: %v, want %v", name, limit, got, c.want)
			}
		}
	}
}

// A record that is added between two pages does not move the other records. A record that leaves
// the ring is missing.
func TestPagesWhileRecordsArrive(t *testing.T) {
	g := filled(10)
	page := assert.Value(g.Page(&status.AuditQuery{Limit: 4}))(t)
	g.Add(&status.AuditRecord{Subject: "new"})
	if got, want := all(t, g, status.AuditQuery{After: page.Next}), numbers(6, 1, 1); !slices.Equal(got, want) {
		t.Errorf("after a new record the second page has %v, want %v", got, want)
	}
	for i := range 2 * auditCapacity {
		g.Add(&status.AuditRecord{Key: fmt.Sprint("key-", i%2), Subject: "new"})
	}
	if got := all(t, g, status.AuditQuery{After: page.Next}); got != nil {
		t.Errorf("the ring still has %v", got)
	}
}

// A key with many records removes its own ones only, the oldest first.
func TestKeysHaveShares(t *testing.T) {
	g := &auditRing{}
	add := func(key string, n int) {
		for range n {
			g.Add(&status.AuditRecord{Key: key, Subject: fmt.Sprint(g.added + 1)})
		}
	}
	count := func(key string) int { return len(all(t, g, status.AuditQuery{Key: key, Limit: 1000})) }
	expect := func(step string, want map[string]int) {
		t.Helper()
		sum := 0
		for key, n := range want {
			if got := count(key); got != n {
				t.Errorf("%s: %s has %d records, want %d", step, key, got, n)
			}
			sum += n
		}
		if n := len(all(t, g, status.AuditQuery{Limit: 1000})); n != sum || n > 10_000 {
			t.Errorf("%s: %d records, want %d", step, n, sum)
		}
	}
	add("admin", 30)
	add("attacker", 25_000)
	expect("an attack", map[string]int{"admin": 30, "attacker": 9970})
	if got := all(t, g, status.AuditQuery{Key: "attacker", Limit: 1000}); got[0] != "25030" || got[len(got)-1] != "15061" {
		t.Errorf("the records of the attacker are %s to %s, want the newest", got[0], got[len(got)-1])
	}
	assert.Slices(t, "the administrator has", all(t, g, status.AuditQuery{Key: "admin"}), numbers(30, 1, 1))
	add("admin", 6000)
	expect("work after it", map[string]int{"admin": 5000, "attacker": 5000})
	add("third", 100)
	assert.Equal(t, "a third key has records", count("third"), 100)
	assert.Equal(t, "keys", len(g.byKey), 3)
}

func TestBounds(t *testing.T) {
	g := &auditRing{}
	g.Add(&status.AuditRecord{Result: strings.Repeat("\u00e9", 1000), Query: strings.Repeat("x", 256)})
	page := assert.Value(g.Page(&status.AuditQuery{}))(t)
	r := page.Records[0]
	if len(r.Result) > 256 || len(r.Result) < 250 || !utf8.ValidString(r.Result) || !strings.HasSuffix(r.Result, "\u00e9...") || len(r.Query) != 256 {
		t.Errorf("a result of %d bytes: %q; a query of %d", len(r.Result), r.Result, len(r.Query))
	}
	for _, q := range []status.AuditQuery{{Limit: -1}, {Limit: 1001}, {After: "x"}, {After: "0"}, {After: "-1"}} {
		if _, err := g.Page(&q); err == nil || refusal.CodeOf(err) != 40000 {
			t.Errorf("%+v: %v, want code 40000", q, err)
		}
	}
}
