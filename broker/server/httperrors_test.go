package server_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// The error for a path that resembles a route names that route. The error for any other path lists
// the paths of the API.
func TestUnknownPathNamesTheNearestRoute(t *testing.T) {
	s := start(t, server.Options{}).s
	for path, want := range map[string]string{
		"/":                         "does not exist; the paths are /console, /console/, /healthz, ",
		"/v1/topic":                 "did you mean /v1/topics?",
		"/v1/topics/orders/message": "did you mean /v1/topics/orders/messages?",
		"/v1/group/billing":         "did you mean /v1/groups/billing?",
		"/v1/topics/":               "/v1/topics/{topic}",
		"/v1/topics/a/b/c/d":        "does not exist; the paths are /console, /console/, /healthz, ",
	} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != 404 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", path, w.Code, w.Body, want)
		}
	}
}

// The reader of a text of durations reports its faults.
func TestBadLadderIsNamed(t *testing.T) {
	s := start(t, server.Options{}).s
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/v1/groups/g", strings.NewReader(`{"retry":"1s zwei"}`)))
	if body := w.Body.String(); w.Code != 400 || !strings.Contains(body, "zwei") || strings.Contains(body, "give a list") {
		t.Errorf("%d %s", w.Code, body)
	}
}

// A failure without an interval: the group's interval after that attempt passes.
func TestHTTPRetryKnowsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		if _, err := x.b.PutGroup(t.Context(), "g", settings.Group{Retry: []time.Duration{time.Second, 9 * time.Second}}); err != nil {
			t.Fatal(err)
		}
		x.ok("/v1/topics/normal/messages", `{"body":"eA=="}`, nil)
		for attempt, want := range []time.Duration{0, time.Second, 9 * time.Second} {
			begin := time.Now()
			d := x.take("normal", `{"wait":"10s"}`, 1)[0]
			if waited := time.Since(begin); d.Attempt != attempt+1 || waited != want {
				t.Errorf("attempt %d came after %v, want %d after %v", d.Attempt, waited, attempt+1, want)
			}
			x.ok("/v1/groups/g/retry", `{"handle":"`+d.Handle+`"}`, nil)
			x.failed("/v1/groups/g/retry", `{"handle":"`+d.Handle+`"}`, 400, 40013, "")
		}
	})
}

// An interval longer than the maximum of the invisible duration is accepted for a failure: it is in
// the group's settings, which official clients get.
func TestLongRetryIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		if _, err := x.b.PutGroup(t.Context(), "g", settings.Group{Retry: []time.Duration{24 * time.Hour}}); err != nil {
			t.Fatal(err)
		}
		x.ok("/v1/topics/normal/messages", `{"body":"eA=="}`, nil)
		d := x.take("normal", `{"wait":"10s"}`, 1)[0]
		x.ok("/v1/groups/g/retry", `{"handle":"`+d.Handle+`"}`, nil)
		begin := time.Now()
		time.Sleep(24*time.Hour - time.Second)
		if d = x.take("normal", `{"wait":"10s"}`, 1)[0]; time.Since(begin) != 24*time.Hour {
			t.Errorf("it came after %v", time.Since(begin))
		}
		x.failed("/v1/groups/g/retry", `{"handle":"`+d.Handle+`","after":"25h"}`, 400, 40011, "24h")
		x.ok("/v1/groups/g/retry", `{"handle":"`+d.Handle+`","after":"24h"}`, nil)
	})
}

// The error for a handle of another group has the name of that group, and no other name.
func TestForeignHandleErrorNamesItsGroup(t *testing.T) {
	x := startWeb(t, server.Options{})
	x.ok("/v1/topics/normal/messages", `{"body":"eA=="}`, nil)
	d := x.take("normal", `{}`, 1)[0]
	p := x.failed("/v1/groups/other/acknowledge", `{"handles":["`+d.Handle+`"]}`, 400, 40013, `it belongs to group "g", not to "other"`)
	if strings.Contains(p.Detail, `""`) {
		t.Errorf("the detail is %s", p.Detail)
	}
}

// The duration "without end" is printed as -1s, as it is written, not as a nanosecond.
func TestForEverIsReadable(t *testing.T) {
	e := start(t, server.Options{})
	c := settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Time: -1}}
	if _, err := e.b.PutTopic(t.Context(), "kept", c); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	e.s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/topics/kept", nil))
	for _, want := range []string{`"duplicate_window": "-1s"`, `"time": "-1s"`} {
		if !bytes.Contains(w.Body.Bytes(), []byte(want)) {
			t.Errorf("%s does not contain %s", w.Body, want)
		}
	}
}
