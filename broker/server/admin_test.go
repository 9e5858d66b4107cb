package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/server"
)

func TestAdmin(t *testing.T) {
	e := start(t, server.Options{})
	srv := httptest.NewServer(e.s.Handler())
	defer srv.Close()
	for _, c := range []struct {
		method, path, body string
		status             int
		words              []string // of the response
	}{
		{"GET", "/healthz", "", 200, []string{`"ok"`}},
		{"GET", "/readyz", "", 200, []string{`"ready"`}},
		{"PUT", "/v1/topics/orders", `{"type":"FIFO","queues":3,"max_backlog":{"messages":1000}}`, 201, []string{`"name": "orders"`, `"FIFO"`, `"queues": 3`, `"messages": 1000`}},
		{"PUT", "/v1/topics/orders", `{"queues":4}`, 200, []string{`"queues": 4`, `"FIFO"`}},
		{"PUT", "/v1/topics/orders", `{"queues":0}`, 400, []string{"queues is 0; give 1 to 1024, or leave it out for 8", `"code": 40000`}},
		{"PUT", "/v1/topics/plain", "", 201, []string{`"NORMAL"`, `"queues": 8`}},
		{"GET", "/v1/topics/orders", "", 200, []string{`"queues": 4`, `"backlog"`}},
		{"GET", "/v1/topics", "", 200, []string{`"topics": [`, `"orders"`, `"plain"`}},
		{"PUT", "/v1/topics/orders", `{"queues":1}`, 400, []string{"4 queues", `"code": 40000`, `"reply_code": 40000`, `"BAD_REQUEST"`, `"about:blank"`}},
		{"PUT", "/v1/topics/orders", `{"type":"NORMAL"}`, 400, []string{"FIFO"}},
		{"PUT", "/v1/topics/other", `{"type":"LITE"}`, 400, []string{"LITE", "NORMAL, FIFO, DELAY or TRANSACTION"}},
		{"PUT", "/v1/topics/tx", `{"type":"TRANSACTION","transaction":{"timeout":"1s","check_max":-1}}`, 201, []string{`"TRANSACTION"`, `"timeout": "1s"`, `"check_max": -1`}},
		{"PUT", "/v1/topics/tx", `{"transaction":{"timeout":"-1s","check_max":-2}}`, 400, []string{"transaction.timeout is -1s", "transaction.check_max is -2"}},
		{"PUT", "/v1/topics/other", `{"queues":1025}`, 400, []string{"1025", "1024"}},
		{"PUT", "/v1/topics/other", `{"queue":1}`, 400, []string{`\"queue\" is unknown`, "type, queues, duplicate_window, max_backlog, max_rate, retention, transaction"}},
		{"PUT", "/v1/topics/other", `{"max_backlog":{"message":1}}`, 400, []string{`\"message\" is unknown`}},
		{"PUT", "/v1/topics/other", `{"queues":"many"}`, 400, []string{"queues", "string"}},
		{"PUT", "/v1/topics/other", `{} {}`, 400, []string{"after top-level value"}},
		{"PUT", "/v1/topics/other", `[]`, 400, []string{"not a JSON object"}},
		{"PUT", "/v1/topics/other", `null`, 400, []string{"not a JSON object"}},
		{"PUT", "/v1/topics/other", `{"queues":`, 400, []string{"body"}},
		{"PUT", "/v1/topics/other", `{"x":"` + strings.Repeat("x", 70<<10) + `"}`, 413, []string{"65536", `"code": 41300`}},
		{"PUT", "/v1/topics/a%20b", `{}`, 400, []string{`"code": 40002`}},
		{"GET", "/v1/topics/other", "", 404, []string{"other", `"code": 40402`, `"TOPIC_NOT_FOUND"`}},
		{"GET", "/v1/topics/other.eu", "", 404, []string{"PUT /v1/topics/other.eu", `"code": 40402`, `"TOPIC_NOT_FOUND"`}},
		{"DELETE", "/v1/topics/other.eu", "", 404, []string{`"code": 40402`}},
		{"GET", "/v1/topics/other.eu/queues", "", 404, []string{`"code": 40402`}},
		{"GET", "/v1/topics/a..b", "", 400, []string{`"code": 40002`}},
		{"POST", "/v1/topics/orders/purge", "", 200, []string{`"removed"`, `"messages": 0`, `"bytes": 0`}},
		{"POST", "/v1/topics/other/purge", "", 404, []string{`"code": 40402`}},
		{"GET", "/v1/topics/orders/purge", "", 405, []string{"POST"}},
		{"PUT", "/v1/topics/orders", `{"retention":{"time":"1h","bytes":1000,"consumed":true}}`, 200, []string{`"time": "1h0m0s"`, `"bytes": 1000`, `"consumed": true`}},
		{"PUT", "/v1/topics/orders", `{"retention":{"bytes":-1}}`, 400, []string{"retention.bytes is -1"}},
		{"PUT", "/v1/topics/orders", `{"retention":{"time":3}}`, 400, []string{"1m30s"}},
		{"DELETE", "/v1/topics/other", "", 404, []string{`"code": 40402`}},
		{"DELETE", "/v1/topics/plain", "", 204, nil},
		{"GET", "/v1/topics/plain", "", 404, nil},

		{"PUT", "/v1/groups/g", `{"max_attempts":5,"retry":"1s 2s","max_backlog":{"bytes":10}}`, 201, []string{`"max_attempts": 5`, `"1s 2s"`}},
		{"PUT", "/v1/groups/g", `{"fifo":true,"fifo_retry_interval":"5s"}`, 200, []string{`"fifo": true`, `"5s"`, `"max_attempts": 17`}},
		{"PUT", "/v1/groups/g", `{"fifo_retry_interval":5}`, 400, []string{"1m30s"}},
		{"PUT", "/v1/groups/g", `{"retry":"soon"}`, 400, []string{"soon"}},
		{"PUT", "/v1/groups/g", `{"max_attempts":-2}`, 400, []string{"-2"}},
		{"PUT", "/v1/groups/g", `{"attempts":2}`, 400, []string{`\"attempts\" is unknown`, "fifo, start, max_attempts, on_exhausted, retry"}},
		{"PUT", "/v1/groups/g", `{"retry":["10s","30s"]}`, 400, []string{`retry is a list; give one text with all intervals, such as \"10s 30s 1m\"`}},
		{"PATCH", "/v1/groups/g", `{"max_attempts":3,"negative_ack":{"delay":"7s"},"retry_topic":{"levels":"1s 9s"}}`, 200,
			[]string{`"fifo": true`, `"fifo_retry_interval": "5s"`, `"max_attempts": 3`, `"delay": "7s"`, `"1s 9s"`, `"naming": "2.9.2"`}},
		{"PATCH", "/v1/groups/g", `{"max_attempts":null,"negative_ack":{"max_redeliveries":2},"retry_topic":null}`, 200,
			[]string{`"fifo": true`, `"max_attempts": 17`, `"delay": "7s"`, `"max_redeliveries": 2`, `"1s 5s 10s 30s`}},
		{"PATCH", "/v1/groups/g", `{}`, 200, []string{`"delay": "7s"`}},
		{"PATCH", "/v1/groups/g", `{"attempts":null}`, 400, []string{`\"attempts\" is unknown`, "fifo, start, max_attempts"}},
		{"PATCH", "/v1/groups/g", `{"negative_ack":{"delays":null}}`, 400, []string{`\"delays\" is unknown in negative_ack`, "delay, max_redeliveries"}},
		{"PATCH", "/v1/groups/g", `{"negative_ack":{"delay":7}}`, 400, []string{"negative_ack.delay", "1m30s"}},
		{"PATCH", "/v1/groups/g", `{"negative_ack":7}`, 400, []string{"negative_ack is a number (7); give an object"}},
		{"PATCH", "/v1/groups/g", `{"max_attempts":1,"max_attempts":2}`, 400, []string{`\"max_attempts\" is repeated`}},
		{"PATCH", "/v1/groups/g", `{"max_attempts":-2}`, 400, []string{"max_attempts is -2"}},
		{"PATCH", "/v1/groups/g", `[]`, 400, []string{"not a JSON object"}},
		{"PATCH", "/v1/groups/g", ``, 400, []string{"it is empty"}},
		{"PATCH", "/v1/groups/h", `{}`, 404, []string{`"code": 40403`}},
		{"GET", "/v1/groups/g", "", 200, []string{`"fifo": true`, `"max_attempts": 17`, `"delay": "7s"`}}, // the faulty ones changed nothing
		{"GET", "/v1/groups", "", 200, []string{`"groups": [`, `"g"`}},
		{"GET", "/v1/groups/h", "", 404, []string{`"code": 40403`}},
		{"DELETE", "/v1/groups/g", "", 204, nil},
		{"DELETE", "/v1/groups/g", "", 404, []string{`"code": 40403`}},
		{"GET", "/v1/groups", "", 200, []string{`"groups": []`}},

		{"GET", "/v1/throttle", "", 200, []string{`"throttles": []`, `"not_reached": []`, `"limits": {}`}},
		{"PUT", "/v1/throttle", `{"max_backlog":{"messages":7,"age":"1h"},"client_quota":{"messages_per_second":3},"pressure":{"min_free_disk_bytes":-1,"max_write_stall":"2s"}}`, 200,
			[]string{`"messages": 7`, `"age": "1h0m0s"`, `"messages_per_second": 3`, `"min_free_disk_bytes": -1`, `"max_write_stall": "2s"`}},
		{"PUT", "/v1/throttle", `{"max_backlog":{"messages":-1},"pressure":{"min_free_disk_bytes":-2}}`, 400, []string{"max_backlog is -1", "min_free_disk_bytes is -2", `"code": 40000`}},
		{"PUT", "/v1/throttle", `{"max_backlogs":{}}`, 400, []string{`\"max_backlogs\" is unknown`, "max_backlog, client_quota, pressure"}},
		{"GET", "/v1/throttle", "", 200, []string{`"messages": 7`}}, // a bad one changed nothing
		{"PATCH", "/v1/throttle", `{"max_backlog":{"bytes":9},"pressure":{"max_write_stall":null}}`, 200,
			[]string{`"messages": 7`, `"bytes": 9`, `"age": "1h0m0s"`, `"messages_per_second": 3`, `"min_free_disk_bytes": -1`, `"pressure": {`}},
		{"PATCH", "/v1/throttle", `{"max_backlog":{"bytes":-9}}`, 400, []string{"max_backlog is 7 messages and -9 bytes", `"code": 40000`}},
		{"PATCH", "/v1/throttle", `{"max_backlog":{"byte":9}}`, 400, []string{`\"byte\" is unknown in max_backlog`, `"code": 40000`}},
		{"PATCH", "/v1/throttle", `{"max_backlog":null,"pressure":null}`, 200, []string{`"limits": {`, `"messages_per_second": 3`}},
		{"PUT", "/v1/throttle", "", 200, []string{`"limits": {}`}},
		{"DELETE", "/v1/throttle", "", 405, []string{"GET, HEAD, PATCH, PUT"}},
		{"PUT", "/v1/topics/rated", `{"max_rate":{"messages_per_second":5,"burst":2},"max_backlog":{"age":"10m"}}`, 201, []string{`"messages_per_second": 5`, `"burst": 2`, `"age": "10m0s"`}},
		{"PUT", "/v1/topics/rated", `{"max_rate":{"burst":2}}`, 400, []string{"max_rate.burst is 2"}},
		{"DELETE", "/v1/topics/rated", "", 204, nil},

		// Names with a % are escaped in paths.
		{"PUT", "/v1/topics/%25DLQ%25g", `{"queues":1}`, 201, []string{`"name": "%DLQ%g"`}},
		{"GET", "/v1/topics/%25DLQ%25g", "", 200, []string{`"name": "%DLQ%g"`}},
		{"GET", "/v1/topics/a%2Fb", "", 400, []string{`a/b`}},

		{"POST", "/v1/topics/orders", "", 405, []string{"DELETE, GET, HEAD, PUT", "POST"}},
		{"DELETE", "/v1/topics", "", 405, []string{"GET"}},
		{"PUT", "/healthz", "", 405, []string{"GET"}},
		{"GET", "/v1/topics/", "", 404, []string{"/v1/topics/{topic}"}},
		{"GET", "/", "", 404, nil},
		{"GET", "/v2/topics", "", 404, []string{"/v2/topics"}},
	} {
		name := c.method + " " + c.path + " " + fmt.Sprintf("%.40s", c.body)
		req, err := http.NewRequestWithContext(t.Context(), c.method, srv.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		_, err = io.Copy(&b, resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != c.status {
			t.Errorf("%s: %d, want %d: %s", name, resp.StatusCode, c.status, b.String())
			continue
		}
		for _, w := range c.words {
			if !strings.Contains(b.String(), w) {
				t.Errorf("%s: the response does not contain %s: %s", name, w, b.String())
			}
		}
		want := "application/json"
		switch {
		case c.status == 204:
			want = ""
		case c.status >= 400:
			want = "application/problem+json"
			var p server.Problem
			if err := json.Unmarshal([]byte(b.String()), &p); err != nil || p.Status != c.status || p.Title == "" || p.Detail == "" {
				t.Errorf("%s: problem %+v, %v", name, p, err)
			}
		}
		if got := resp.Header.Get("Content-Type"); got != want {
			t.Errorf("%s: Content-Type %q; want %q", name, got, want)
		}
		if c.status == 405 && resp.Header.Get("Allow") == "" {
			t.Errorf("%s: no Allow", name)
		}
	}
}

// A server that ends, and an engine that is closed, are alive but not ready.
func TestReadiness(t *testing.T) {
	get := func(e *env, path string) (int, string) {
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	ending, closed := start(t, server.Options{}), start(t, server.Options{})
	ending.s.Close()
	closed.b.Close()
	for name, e := range map[string]*env{"ending": ending, "closed": closed} {
		if code, body := get(e, "/healthz"); code != 200 {
			t.Errorf("%s: healthz %d %s", name, code, body)
		}
		if code, body := get(e, "/readyz"); code != 503 || !strings.Contains(body, "closed") {
			t.Errorf("%s: readyz %d %s", name, code, body)
		}
	}
	w := httptest.NewRecorder()
	closed.s.Handler().ServeHTTP(w, httptest.NewRequest("PUT", "/v1/topics/x", strings.NewReader("{}")))
	if w.Code != 503 {
		t.Errorf("PUT to a closed engine: %d %s", w.Code, w.Body)
	}
}

// A panic of the engine becomes an error response and a log line.
func TestAdminSurvivesTheEngine(t *testing.T) {
	logger, logged := testLog()
	e := start(t, server.Options{Logger: logger})
	w := httptest.NewRecorder()
	e.s.Doing(func(*http.Request) (any, error) { panic("ouch") }).ServeHTTP(w, httptest.NewRequest("POST", "/v1/groups/g/dead-letters/redrive", nil))
	if w.Code != 500 || !strings.Contains(w.Body.String(), "ouch") || !strings.Contains(logged.String(), "admin_test.go") {
		t.Errorf("%d %s, log %s", w.Code, w.Body, logged)
	}
}

// The administration takes JSON alone. It rejects the types that a page can send to another server.
// A page can send no PUT or PATCH, so these may have no type, or that of a form, which curl sets.
func TestAdministrationTypes(t *testing.T) {
	const form, utf8, merge, ofText = "application/x-www-form-urlencoded", "application/json; charset=utf-8", "application/merge-patch+json", "text/plain;charset=UTF-8"
	e := start(t, server.Options{})
	adminCall(t, e, "PUT", "/v1/groups/g", `{}`, 201)
	for _, c := range []struct {
		method, path, body string
		as                 []string
		status             int
	}{
		{"PUT", "/v1/topics/orders", `{"queues":2}`, []string{"", server.TypeJSON, utf8, form}, 200},
		{"PUT", "/v1/topics/orders", `{"queues":2}`, []string{"text/plain", ofText, "multipart/form-data; boundary=x", "application/yaml", "nonsense/"}, 415},
		{"PATCH", "/v1/groups/g", `{"max_attempts":3}`, []string{"", server.TypeJSON, merge, form}, 200},
		{"PATCH", "/v1/groups/g", `{"max_attempts":3}`, []string{"text/plain", server.TypeNDJSON}, 415},
		{"PUT", "/v1/throttle", `{}`, []string{"", form}, 200},
		{"PUT", "/v1/address-settings/a.b", `{}`, []string{"", form}, 200},
		{"PUT", "/v1/address-settings/a.b", `{}`, []string{ofText}, 415},
		{"POST", "/v1/groups/g/rewind", `{"topic":"normal","to":"earliest"}`, []string{server.TypeJSON, utf8}, 200},
		{"POST", "/v1/groups/g/rewind", `{"topic":"normal","to":"earliest"}`, []string{"", form, "text/plain", "multipart/form-data"}, 415},
		{"POST", "/v1/groups/g/parked/redrive", `{}`, []string{"", form, "text/plain"}, 415},
		{"POST", "/v1/groups/g/parked/redrive", ``, []string{"", form}, 200},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{}`, []string{"", form, ofText}, 415},
	} {
		for _, as := range c.as {
			r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body))
			if as != "" {
				r.Header.Set("Content-Type", as)
			}
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			if text := w.Body.String(); w.Code != c.status && (c.status == 415 || w.Code/100 != 2) {
				t.Errorf("%s %s as %q: %d %s, want %d", c.method, c.path, as, w.Code, text, c.status)
			} else if c.status == 415 && (!strings.Contains(text, as) || !strings.Contains(text, "-H 'Content-Type: application/json'")) {
				t.Errorf("%s %s as %q: %s", c.method, c.path, as, text)
			}
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), "PUT", "/v1/topics/orders", strings.NewReader("x"))
	r.Header.Set("Content-Encoding", "gzip")
	w := httptest.NewRecorder()
	if e.s.Handler().ServeHTTP(w, r); w.Code != 415 || !strings.Contains(w.Body.String(), "gzip") {
		t.Errorf("with gzip: %d %s", w.Code, w.Body)
	}
}
