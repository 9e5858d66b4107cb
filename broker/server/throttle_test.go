package server_test

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// GET /v1/throttle has the limits that reject sends, with reason and time, and those that are near.
func TestThrottleReportsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		if _, err := e.b.PutTopic(t.Context(), "full", settings.Topic{MaxBacklog: settings.Limit{Messages: 2, Bytes: 1000}}); err != nil {
			t.Fatal(err)
		}
		send := func() error {
			m := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "full", Body: []byte("x")}
			return e.b.Send(t.Context(), []*tidegate.Message{m})[0].Err
		}
		get := func() (a status.Throttles) {
			t.Helper()
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/throttle", nil))
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
				t.Fatalf("%d, %v: %s", w.Code, err, w.Body)
			}
			return a
		}
		limits := func(ls []status.LimitState) (names []string) {
			for _, l := range ls {
				names = append(names, l.Limit)
			}
			return names
		}
		if a := get(); len(a.Throttles) != 0 || len(a.NotReached) != 2 {
			t.Fatalf("throttles %q, not reached %q", limits(a.Throttles), limits(a.NotReached))
		}
		for range 2 {
			if err := send(); err != nil {
				t.Fatal(err)
			}
		}
		if send() == nil {
			t.Fatal("the third is accepted")
		}
		since := time.Now()
		time.Sleep(time.Minute)
		a := get()
		if len(a.Throttles) != 1 || len(a.NotReached) != 1 {
			t.Fatalf("throttles %q, not reached %q", limits(a.Throttles), limits(a.NotReached))
		}
		th := a.Throttles[0]
		if th.Limit != "topic backlog messages" || th.Subject != "full" || th.Value != 2 || th.Mark != 2 || th.Resume != 1 || th.Unit != "messages" || !th.On || !th.Since.Equal(since) {
			t.Errorf("the limit is %+v, want it since %v", th, since)
		}
		if n := a.NotReached[0]; n.Limit != "topic backlog bytes" || n.Value != 2 || n.Mark != 1000 || n.On || !n.Since.IsZero() {
			t.Errorf("not reached: %+v", n)
		}
	})
}
