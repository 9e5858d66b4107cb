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
	"github.com/tidegate/tidegate/broker/internal/engine"
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
		e := start(t, server.Options{Version: "v9.8.7"}, &faulty{append: func(context.Context, []engine.Incoming) error { return disk }})
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
				if _, err := e.b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"}); err != nil {
					t.Fatal(err)
				}
				e.send(msg(topic, "2"))
			} else if _, err := e.b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: 2 * time.Hour}); err != nil {
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

// The history has the messages of each slot. Its counters are those of the live stream, so a client
// can go on with it.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		opened := time.Now()
		time.Sleep(time.Second)
		e.send(msg("normal", "1"), msg("normal", "2"))
		e.ack(e.one(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 })))
		time.Sleep(14 * time.Second)
		var h engine.HistoryResult
		e.requestJSON("GET", "/v1/history?topics=normal,none&groups=g,none", 200, &h)
		next, end := e.watchLive("?topics=normal&groups=g")
		defer end()
		live, _ := next()
		if !h.AsOf.Equal(time.Now()) || !h.Started.Equal(opened) || h.StepMS != 10_000 || len(h.Topics) != 1 || len(h.Groups) != 1 {
			t.Fatalf("%+v", h)
		}
		topic, group := h.Topics[0], h.Groups[0]
		if fmt.Sprint(topic.Accepted, topic.Acked, topic.Backlog, group.Delivered, group.Acked, group.Backlog) != "[2 0] [1 0] [1 1] [1 0] [1 0] [1 1]" {
			t.Errorf("topic %+v, group %+v", topic, group)
		}
		if l := live.Topics[0]; l.Accepted != 2 || l.Accepted != topic.Counters.Accepted || l.Acked != 1 || l.Acked != topic.Counters.Acked || l.Backlog.Messages != topic.Backlog[1] {
			t.Errorf("the history ends with %+v, the live stream has %+v", topic, l)
		}
		if l := live.Groups[0]; l.Acked != 1 || l.Acked != group.Counters.Acked || l.Backlog.Messages != group.Backlog[1] {
			t.Errorf("the history ends with %+v, the live stream has %+v", group, l)
		}
		e.requestJSON("GET", "/v1/history", 200, &h)
		if c := live.Counters; h.Total.Counters.Accepted != c.Accepted.Messages || h.Total.Counters.Delivered != c.Delivered || h.Total.Counters.Acked != c.Acked {
			t.Errorf("the history ends with %+v, the live stream has %+v", h.Total.Counters, c)
		}
		e.requestJSON("GET", "/v1/history?window=day", 200, &h)
		if h.StepMS != 300_000 || fmt.Sprint(h.Total.Accepted) != "[2]" {
			t.Errorf("the day %+v", h.Total)
		}
		for _, query := range []string{"window=week", "x=1", "topics=" + strings.Repeat("t,", 100)} {
			e.requestJSON("GET", "/v1/history?"+query, 400, nil)
		}
	})
}

// A key gets the topics and groups that it may observe, and the sums of these as totals.
func TestHistoryOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
		for i, topic := range []string{"normal", "fifo", "fifo"} {
			if res := e.b.Send(t.Context(), []*tidegate.Message{{ID: fmt.Sprint(i), Topic: topic, Body: []byte("x"), MessageGroup: map[string]string{"fifo": "m"}[topic]}}); res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
		}
		for _, g := range []struct{ group, topic string }{{"g", "normal"}, {"other", "fifo"}} {
			if ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: g.group, Topic: g.topic, Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute}); err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
		}
		time.Sleep(2 * time.Second)
		for key, want := range map[string]struct{ named, total string }{
			"admin":    {"normal [1] fifo [2] g [1] other [1]", "[3] [2] [3]"}, // accepted, delivered, backlog
			"monitor":  {"normal [1] fifo [2] g [1] other [1]", "[3] [2] [3]"},
			"owner":    {"normal [1] g [1]", "[1] [1] [1]"}, // of norm* and g
			"producer": {"", "[] [] []"},
			"consumer": {"", "[] [] []"},
		} {
			get := func(query string) (h engine.HistoryResult) {
				r := httptest.NewRequest("GET", "https://h/v1/history"+query, nil)
				by(key)(r)
				w := httptest.NewRecorder()
				e.s.Handler().ServeHTTP(w, r)
				if err := json.Unmarshal(w.Body.Bytes(), &h); err != nil || w.Code != 200 {
					t.Fatalf("%s: %d %s", key, w.Code, w.Body)
				}
				return h
			}
			named := get("?topics=normal,fifo&groups=g,other")
			var got []string
			for _, s := range named.Topics {
				got = append(got, fmt.Sprint(s.Name, " ", s.Accepted))
			}
			for _, s := range named.Groups {
				got = append(got, fmt.Sprint(s.Name, " ", s.Delivered))
			}
			if text := strings.Join(got, " "); text != want.named {
				t.Errorf("%s gets %q, want %q", key, text, want.named)
			}
			h := get("")
			if text := fmt.Sprint(h.Total.Accepted, h.Total.Delivered, h.Total.Backlog); text != want.total {
				t.Errorf("the total of %s is %q, want %q", key, text, want.total)
			}
			if *h.LeftOut != (engine.HistoryLeftOut{}) || key == "owner" && h.Total.Counters != (engine.HistoryCounters{Accepted: 1, Delivered: 1}) {
				t.Errorf("%s gets %+v", key, h)
			}
		}
	})
}
