package server

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
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/broker/status"
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
	messageServer // nil: the tests call no other method

	calls []Call
}

func (s *fakeServer) through(ctx context.Context, c Call, do func(context.Context) error) error {
	s.calls = append(s.calls, c)
	return do(ctx)
}

func (*fakeServer) parkHTTP(*http.Request) (transit.Hold, error) {
	return transit.New("waiting", 1<<20, 0).Hold("test", nil), nil
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
		Life: t.Context(), Bodies: transit.New("bodies", 256<<20, 0), MaxBody: 1 << 20, MaxLongPolling: 20 * time.Second,
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
	code, v, err := f(w, r.WithContext(transit.With(r.Context(), &hold)))
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
