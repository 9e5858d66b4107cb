package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// requestJSON makes a request of the handler and decodes the response into out.
func (e *env) requestJSON(method, path string, want int, out any) *httptest.ResponseRecorder {
	e.t.Helper()
	w := httptest.NewRecorder()
	e.s.Handler().ServeHTTP(w, httptest.NewRequest(method, path, nil))
	if w.Code != want {
		e.t.Fatalf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, want)
	}
	if out != nil {
		if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
			e.t.Fatalf("%s %s: %v in %s", method, path, err, w.Body)
		}
	}
	return w
}

// The overview has the version, the times, the state of the server, and the figures of the engine.
func TestOverview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var disk error
		e := start(t, server.Options{Version: "v9.8.7"}, &faulty{append: func(context.Context, []serving.Incoming) error { return disk }})
		opened := time.Now()
		e.send(msg("normal", "1"), msg("normal", "2"))
		time.Sleep(90 * time.Second)
		e.one(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 }))
		var o status.Overview
		e.requestJSON("GET", "/v1/overview", 200, &o)
		if o.Version != "v9.8.7" || !o.Ready || o.NotReady != "" || !o.Started.Equal(opened) || !o.Now.Equal(time.Now()) || !o.AsOf.Equal(time.Now()) {
			t.Errorf("%+v", o)
		}
		if o.Totals.Topics != 2 || o.Totals.Inflight != 1 || o.Totals.Ready != 1 || o.Counters.Delivered != 1 || o.Clients == 0 || len(o.Memory) != 3 || o.Memory[0].Limit == 0 {
			t.Errorf("%+v", o)
		}
		if top := o.Top.Groups["backlog"]; len(top) != 1 || top[0].Group != "g" || top[0].Backlog.Messages != 2 {
			t.Errorf("top %+v", o.Top)
		}
		if b := o.Wrong.Behind; b.Count != 1 || b.First[0].UndeliveredMS != 90_000 {
			t.Errorf("behind %+v", b)
		}
		disk = &tidegate.Error{Code: tidegate.CodeInternalServerError, Err: errors.New("input/output error")}
		if r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "3")}}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_INTERNAL_SERVER_ERROR {
			t.Errorf("a send to a broken disk: %v, %v", r, err)
		}
		e.requestJSON("GET", "/v1/overview", 200, &o)
		if o.Ready || !strings.Contains(o.NotReady, "input/output error") {
			t.Errorf("after a failed read: ready %v, %q", o.Ready, o.NotReady)
		}
		e.requestJSON("GET", "/v1/overview?x=1", 400, nil)
	})
}

// An overview has at most 50 KB, for any names and any number of topics and groups.
func TestOverviewIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		long := strings.Repeat("x", 114)
		for i := range 60 {
			topic, group := fmt.Sprintf("%s-%05d", long, i), fmt.Sprintf("%s-%05d", long, i)
			if _, err := e.b.PutTopic(t.Context(), topic, settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 1}}); err != nil {
				t.Fatal(err)
			}
			e.send(msg(topic, "1"))
			ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: topic, Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Hour})
			if err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
			if i%2 == 0 {
				if _, err := e.b.DeadLetter(t.Context(), ds[0], "poison"); err != nil {
					t.Fatal(err)
				}
				e.send(msg(topic, "2"))
			} else if _, err := e.b.Retry(t.Context(), ds[0], 2*time.Hour, ""); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		var o status.Overview
		w := e.requestJSON("GET", "/v1/overview", 200, &o)
		if n := w.Body.Len(); n > 50_000 || o.Wrong.Throttles.Count != 60 || o.Wrong.Behind.Count != 30 || o.Wrong.DeadLetters.Count != 30 {
			t.Errorf("%d bytes with %+v", n, o.Wrong)
		}
	})
}
