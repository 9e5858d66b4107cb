package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
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
		{"PUT", "/v1/topics/other", `{"type":"LIGHT"}`, 400, []string{"LIGHT", "NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE"}},
		{"PUT", "/v1/topics/tx", `{"type":"TRANSACTION","transaction":{"timeout":"1s","check_max":-1}}`, 201, []string{`"TRANSACTION"`, `"timeout": "1s"`, `"check_max": -1`}},
		{"PUT", "/v1/topics/tx", `{"transaction":{"timeout":"-1s","check_max":-2}}`, 400, []string{"transaction.timeout is -1s", "transaction.check_max is -2"}},
		{"PUT", "/v1/topics/other", `{"queues":1025}`, 400, []string{"1025", "1024"}},
		{"PUT", "/v1/topics/other", `{"queue":1}`, 400, []string{`\"queue\" is unknown`, "type, queues, duplicate_window, max_backlog, max_rate, retention, lite, transaction"}},
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

		// The durations without end are printed as they are written.
		{"PUT", "/v1/topics/kept", `{"duplicate_window":"-1s","retention":{"time":"-1s"}}`, 201, []string{`"duplicate_window": "-1s"`, `"time": "-1s"`}},

		{"PUT", "/v1/address-settings/%23", `{"dead-letter-address":"DLA","max-delivery-attempts":3,"auto-create-dead-letter-resources":true,"dead-letter-queue-prefix":"","dead-letter-queue-suffix":".DLQ"}`, 201, []string{`"match": "#"`, `"DLA"`}},
		{"PUT", "/v1/address-settings/orders.*", `{"redelivery-delay":5000}`, 201, []string{`"redelivery-delay": 5000`}},
		{"PUT", "/v1/address-settings/orders.*", `{"redelivery-delay":"6s","redelivery-delay-multiplier":1.5}`, 200, []string{`"redelivery-delay": 6000`, "1.5"}},
		{"GET", "/v1/address-settings/orders.*", "", 200, []string{`"match": "orders.*"`, `"redelivery-delay": 6000`}},
		{"GET", "/v1/address-settings", "", 200, []string{`"address_settings": [`, `"orders.*"`, `"#"`}},
		{"GET", "/v1/topics/orders.eu/address-settings", "", 200, []string{`"topic": "orders.eu"`, `"orders.*",`, `"redelivery-delay": 6000`, `"max-delivery-attempts": 3`}},
		{"PUT", "/v1/address-settings/a..b", `{"redelivery-delay":-1,"redelivery-collision-avoidance-factor":7}`, 400, []string{"a..b", "-1", "factor is 7", "0.0 to 1.0"}},
		{"PUT", "/v1/address-settings/t", `{"redelivery_delay":1}`, 400, []string{`\"redelivery_delay\" is unknown`, "redelivery-delay, "}},
		{"PUT", "/v1/address-settings/t", `{"redelivery-delay":1.5}`, 400, []string{"1.5", "milliseconds"}},
		{"GET", "/v1/address-settings/t", "", 404, []string{`"code": 40400`, `\"t\"`}},
		{"DELETE", "/v1/address-settings/t", "", 404, []string{`"code": 40400`}},
		{"DELETE", "/v1/address-settings/orders.*", "", 204, nil},
		{"GET", "/v1/address-settings/orders.*", "", 404, nil},
		{"POST", "/v1/address-settings/orders.*", "", 405, nil},

		{"POST", "/v1/topics/orders", "", 405, []string{"DELETE, GET, HEAD, PUT", "POST"}},
		{"DELETE", "/v1/topics", "", 405, []string{"GET"}},
		{"PUT", "/healthz", "", 405, []string{"GET"}},
		{"GET", "/v1/topics/", "", 404, []string{"/v1/topics/{topic}"}},
		{"GET", "/v1/topic", "", 404, []string{"did you mean /v1/topics?"}},
		{"GET", "/v1/group/billing", "", 404, []string{"did you mean /v1/groups/billing?"}},
		{"GET", "/v1/topics/a/b/c/d", "", 404, []string{"does not exist; the paths are /console, /console/, /healthz, "}},
		{"GET", "/", "", 404, []string{"does not exist; the paths are /console, /console/, /healthz, "}},
		{"GET", "/v2/topics", "", 404, []string{"/v2/topics"}},
	} {
		name := c.method + " " + c.path + " " + fmt.Sprintf("%.40s", c.body)
		req, err := http.NewRequestWithContext(t.Context(), c.method, srv.URL+c.path, strings.NewReader(c.body))
		assert.Must(t, err)
		resp, err := srv.Client().Do(req)
		assert.Must(t, err)
		var b strings.Builder
		_, err = io.Copy(&b, resp.Body)
		resp.Body.Close()
		assert.Must(t, err)
		if resp.StatusCode != c.status {
			t.Errorf("%s: %d, want %d: %s", name, resp.StatusCode, c.status, b.String())
			continue
		}
		for _, w := range c.words {
			assert.That(t, strings.Contains(b.String(), w), "%s: the response does not contain %s: %s", name, w, b.String())
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
		assert.That(t, c.status != 405 || resp.Header.Get("Allow") != "", "%s: no Allow", name)
	}
}

// A server that ends, and an engine that is closed, are alive but not ready.
func TestReadiness(t *testing.T) {
	get := func(e *env, path string) (int, string) {
		w := e.serve(httptest.NewRequest("GET", path, nil))
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
	w := closed.serve(httptest.NewRequest("PUT", "/v1/topics/x", strings.NewReader("{}")))
	assert.That(t, w.Code == 503, "PUT to a closed engine: %d %s", w.Code, w.Body)
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
			w := e.serve(r)
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

// adminCall makes a request of the administration, and expects the status and words of the
// response.
func adminCall(t *testing.T, e *env, method, path, body string, status int, words ...string) string {
	t.Helper()
	w := e.asKey("", method, path, body)
	assert.That(t, w.Code == status, "%s %s %.80s: %d, want %d: %s", method, path, body, w.Code, status, w.Body)
	assert.Contains(t, fmt.Sprintf("%s %s %.80s: the response", method, path, body), w.Body.String(), words...)
	return w.Body.String()
}

// fail makes n messages of a topic fail for group g until they have no attempts left.
func fail(t *testing.T, e *env, topic, messageGroup string, n int) {
	t.Helper()
	for i := range n {
		m := &tidegate.Message{ID: fmt.Sprint(topic, i), Topic: topic, MessageGroup: messageGroup, Properties: map[string]string{"k": "v"}, Body: []byte("body")}
		assert.Must(t, e.b.Send(t.Context(), []*tidegate.Message{m})[0].Err)
	}
	ds := assert.Value(e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: topic, Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute}))(t)
	for _, d := range ds {
		assert.Must(t, assert.Err(e.b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})))
	}
}

func putGroup(t *testing.T, e *env, c settings.Group) {
	t.Helper()
	assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", c)))
}

func TestAdminDeadLetters(t *testing.T) {
	e := start(t, server.Options{})
	putGroup(t, e, settings.Group{MaxAttempts: 1})
	const path = "/v1/groups/g/dead-letters"
	adminCall(t, e, "GET", path, "", 200, `"dead_letters": []`)
	adminCall(t, e, "GET", "/v1/groups/h/dead-letters", "", 404, "40403")
	fail(t, e, "normal", "", 4)

	var page status.DeadLetterPage
	assert.Must(t, json.Unmarshal([]byte(adminCall(t, e, "GET", path, "", 200)), &page))
	newest := page.DeadLetters[3].MessageID
	adminCall(t, e, "DELETE", path+"?topic=normal&limit=1&order=largest", "", 400, "order")
	adminCall(t, e, "DELETE", path+"?topic=normal&dry_run=true", "", 200, `"purged": 4`)
	adminCall(t, e, "DELETE", path+"?topic=normal&limit=1&order=newest", "", 200, `"purged": 1`)
	text := adminCall(t, e, "GET", path, "", 200)
	assert.That(t, strings.Count(text, `"body_size"`) == 3 && !strings.Contains(text, newest), "without %s: %s", newest, text)
	page = status.DeadLetterPage{}
	assert.Must(t, json.Unmarshal([]byte(adminCall(t, e, "GET", path+"?limit=2&topic=normal&reason=delivery&since=2020-01-01T00:00:00Z", "", 200)), &page))
	assert.MustThat(t, len(page.DeadLetters) == 2 && page.Next != "", "%+v", page)
	l := page.DeadLetters[0]
	if l.Origin.Topic != "normal" || l.Origin.Group != "g" || l.Origin.Attempts != 1 || l.Origin.Reason == "" || l.BodySize != 4 || l.Body != nil ||
		len(l.Properties) != 1 || l.Properties["k"] != "v" {
		t.Errorf("%+v", l)
	}
	adminCall(t, e, "GET", path+"?bodies=true&after="+page.Next, "", 200, base64.StdEncoding.EncodeToString([]byte("body")))
	adminCall(t, e, "GET", path+"?text=true&after="+page.Next, "", 200, `"body_text": "body"`)
	for _, bad := range []string{"?limit=x", "?limit=1001", "?since=now", "?until=1", "?topic=a&topic=b", "?bodies=1", "?after=x"} {
		adminCall(t, e, "GET", path+bad, "", 400, "40000")
	}

	adminCall(t, e, "GET", "/v1/groups/g", "", 200, `"dead_letter_topics": [`, `"%DLQ%g"`)
	adminCall(t, e, "GET", path+"?dead_letter_topic=%25DLQ%25g", "", 200, `"message_id": "`+l.MessageID)
	adminCall(t, e, "GET", path+"?dead_letter_topic=normal", "", 200, `"dead_letters": []`)
	adminCall(t, e, "DELETE", path+"?all=true&dead_letter_topic=normal", "", 200, `"purged": 0`)
	adminCall(t, e, "POST", path+"/redrive", `{"dead_letter_topic":"nowhere"}`, 404, "40402")
	adminCall(t, e, "POST", path+"/redrive", `{"dead_letter_topic":"normal"}`, 200, `"redriven": 0`)
	adminCall(t, e, "DELETE", path, "", 400, "all=true")
	adminCall(t, e, "DELETE", path+"?all=true&topic=normal", "", 400, "give either all=true")
	adminCall(t, e, "DELETE", path+"?message_id="+l.MessageID, "", 200, `"purged": 1`)
	adminCall(t, e, "POST", path+"/redrive", `{"topic":"other"}`, 200, `"redriven": 0`)
	adminCall(t, e, "POST", path+"/redrive", `{"max":1}`, 400, "max_redrives")
	adminCall(t, e, "POST", path+"/redrive", `{"to":"nowhere"}`, 404, "40402")
	assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "normal", settings.Topic{MaxBacklog: settings.Limit{Messages: 1}})))
	adminCall(t, e, "POST", path+"/redrive", `{"limit":10}`, 200, `"redriven": 1`, `"next": `, `"throttle": {`, `"topic backlog messages"`)
	adminCall(t, e, "POST", path+"/redrive", "", 429, `"reply_code": 530`)
	adminCall(t, e, "DELETE", path+"?all=true", "", 200, `"purged": 1`)
	adminCall(t, e, "GET", path+"/redrive", "", 405)
	adminCall(t, e, "PUT", path, "", 405)
}

// A query with an unreadable part is rejected, not read without that part, which would select more.
func TestAdminRejectsUnreadableQueries(t *testing.T) {
	e := start(t, server.Options{})
	putGroup(t, e, settings.Group{MaxAttempts: 1})
	fail(t, e, "normal", "", 3)
	const path = "/v1/groups/g/dead-letters"
	for _, query := range []string{"?all=true&dead_letter_topic=%DLQ%audit", "?topic=normal&reason=disk+at+100%", "?message_id=a;b", "?all=true&;"} {
		adminCall(t, e, "DELETE", path+query, "", 400, "40000", "%25", "%3B")
		adminCall(t, e, "GET", path+query, "", 400, "40000")
	}
	adminCall(t, e, "GET", "/v1/groups/g/parked?topic=%x", "", 400, "40000")
	adminCall(t, e, "DELETE", path+"?all=true", "", 200, `"purged": 3`)
}

// A parameter that a route does not know is rejected: without it the route would select more than
// intended.
func TestAdminRejectsUnknownParameters(t *testing.T) {
	e := start(t, server.Options{})
	putGroup(t, e, settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
	fail(t, e, "fifo", "mg", 1)
	fail(t, e, "normal", "", 3)
	for _, c := range []struct{ method, path, body, word string }{
		{"POST", "/v1/groups/g/dead-letters/redrive?topic=orders&reason=x", "", "topic=orders"},
		{"POST", "/v1/groups/g/dead-letters/redrive?all", "{}", "as JSON"},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{"message_ids":[]}`, "message_ids is empty"},
		{"DELETE", "/v1/groups/g/dead-letters?all=true", `{"topic":"orders"}`, "body"},
		{"POST", "/v1/groups/g/parked/redrive?topic=other", "", "topic=other"},
		{"POST", "/v1/topics/normal/purge?before=2026-01-01T00:00:00Z", "", "the parameters are dry_run"},
		{"POST", "/v1/topics/normal/purge", `{"before":"2026-01-01T00:00:00Z"}`, "body"},
		{"DELETE", "/v1/topics/normal?if_empty=true", "", "if_empty"},
		{"DELETE", "/v1/topics/normal", `{"if_empty":true}`, "body"},
		{"GET", "/v1/throttle?limit=1", "", "limit=1"},
	} {
		adminCall(t, e, c.method, c.path, c.body, 400, "40000", c.word)
	}
	adminCall(t, e, "POST", "/v1/topics/normal/purge?dry_run=true", "", 200, `"messages": 3`)
	adminCall(t, e, "GET", "/v1/topics/normal", "", 200, `"stored_messages": 3`)
	adminCall(t, e, "POST", "/v1/topics/normal/purge?dry_run=false", "", 200, `"messages": 3`)
	adminCall(t, e, "GET", "/v1/topics/normal", "", 200, `"stored_messages": 0`)
	adminCall(t, e, "GET", "/v1/groups/g", "", 200, `"parked": 1`)
	adminCall(t, e, "DELETE", "/v1/groups/g/dead-letters?all=true", "", 200, `"purged": 3`)
	adminCall(t, e, "GET", "/healthz?now=1", "", 200) // some probes add parameters against caches
}

func TestAdminParked(t *testing.T) {
	e := start(t, server.Options{})
	adminCall(t, e, "PUT", "/v1/groups/g", `{"on_exhausted":"park"}`, 400, "fifo")
	adminCall(t, e, "PUT", "/v1/groups/g", `{"fifo":true,"max_attempts":1,"on_exhausted":"park"}`, 201, `"on_exhausted": "park"`)
	adminCall(t, e, "GET", "/v1/groups/g/parked", "", 200, `"groups": []`)
	fail(t, e, "fifo", "mg", 3)
	adminCall(t, e, "GET", "/v1/groups/g", "", 200, `"parked": 3`, `"parked_groups": 1`, `"blocked_groups": 0`)
	adminCall(t, e, "GET", "/v1/groups/g/parked?topic=fifo&limit=1", "", 200, `"message_group": "mg"`, `"message_id": "fifo0"`, `"attempts": 1`, `"reason": "delivery 1 failed`)
	adminCall(t, e, "GET", "/v1/groups/g/parked?topic=nowhere", "", 404, "40402")
	adminCall(t, e, "GET", "/v1/groups/g/parked?limit=-1", "", 400, "limit")
	adminCall(t, e, "GET", "/v1/groups/h/parked", "", 404, "40403")
	adminCall(t, e, "POST", "/v1/groups/g/parked/redrive", `{"message_group":"mg"}`, 400, "topic")
	adminCall(t, e, "POST", "/v1/groups/g/parked/redrive", `{"topic":"fifo","message_group":"other"}`, 404, "not parked")
	adminCall(t, e, "POST", "/v1/groups/g/parked/redrive", `{"topic":"fifo","message_group":"mg"}`, 200, `"message_groups": 1`, `"messages": 3`)
	adminCall(t, e, "GET", "/v1/groups/g/parked", "", 200, `"groups": []`)
}

func TestAdminRewind(t *testing.T) {
	e := start(t, server.Options{})
	putGroup(t, e, settings.Group{MaxAttempts: 1})
	fail(t, e, "normal", "", 4)
	const path = "/v1/groups/g/rewind"
	adminCall(t, e, "POST", path, `{"topic":"normal","to":"earliest"}`, 200, `"queues": [`, `"to": 0`, `"from": 2`, `"dropped": 0`)
	adminCall(t, e, "GET", "/v1/groups/g", "", 200, `"ready": 4`)
	adminCall(t, e, "POST", path, `{"topic":"normal","offsets":{"0":1}}`, 200, `"to": 1`)
	adminCall(t, e, "GET", "/v1/groups/g", "", 200, `"ready": 3`)
	adminCall(t, e, "POST", path, `{"topic":"normal","to":"2026-01-01T00:00:00Z"}`, 200)
	adminCall(t, e, "POST", path, `{"topic":"normal","to":"latest"}`, 200)
	adminCall(t, e, "GET", "/v1/groups/g", "", 200, `"ready": 0`)
	adminCall(t, e, "POST", path, `{"topic":"normal","to":"latest","offsets":{"0":1}}`, 400, "give one")
	adminCall(t, e, "POST", path, `{"topic":"normal"}`, 400, "give one")
	adminCall(t, e, "POST", path, `{"topic":"normal","to":"yesterday"}`, 400, "earliest, latest or a time")
	adminCall(t, e, "POST", path, `{"topic":"normal","offsets":{"first":1}}`, 400, "queue numbers")
	adminCall(t, e, "POST", path, `{"topic":"normal","offsets":{"0":9}}`, 400, "give 0 to 2")
	adminCall(t, e, "POST", path, `{"topic":"nowhere","to":"latest"}`, 404, "40402")
	adminCall(t, e, "POST", "/v1/groups/h/rewind", `{"topic":"normal","to":"latest"}`, 404, "40403")
	adminCall(t, e, "GET", path, "", 405)
}

// RocketMQ's push consumer of a FIFO group makes the retries itself and then forwards the message:
// in a group that parks, that parks the message group. Given up before its last attempt, the
// message alone becomes a dead letter.
func TestForwardWhereGroupsPark(t *testing.T) {
	e := start(t, server.Options{})
	putGroup(t, e, settings.Group{FIFO: true, MaxAttempts: 3, OnExhausted: settings.OnExhaustedPark})
	group := func(m *rmqpb.Message) { m.SystemProperties.MessageGroup = new("mg") }
	e.send(msg("fifo", "1", group), msg("fifo", "2", group), msg("fifo", "3", group))
	forward := func(id string, attempt int32) {
		t.Helper()
		m := e.one(e.ctx(), receiveRequest("fifo"))
		assert.MustEqual(t, "received", m.GetSystemProperties().GetMessageId(), id)
		for range 2 { // they repeat it
			r, err := e.ForwardMessageToDeadLetterQueue(e.ctx(), &rmqpb.ForwardMessageToDeadLetterQueueRequest{
				Group: res("g"), Topic: res("fifo"), MessageId: id, DeliveryAttempt: attempt, MaxDeliveryAttempts: 3,
				ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
			})
			assert.MustThat(t, err == nil && r.GetStatus().GetCode() == rmqpb.Code_OK, "%v, %v", r, err)
		}
	}
	forward("1", 1)
	adminCall(t, e, "GET", "/v1/groups/g/dead-letters", "", 200, `"message_id": "1"`)
	forward("2", 3)
	adminCall(t, e, "GET", "/v1/groups/g/parked", "", 200, `"message_id": "2"`, "attempt 3 of 3")
	adminCall(t, e, "POST", "/v1/groups/g/parked/redrive", "", 200, `"message_groups": 1`)
	forward("2", 2)
	adminCall(t, e, "GET", "/v1/groups/g/parked", "", 200, `"groups": []`)
}

// A delivery of a gRPC client can be retried over HTTP, and the group receives the message again
// from the same topic.
func TestRetryOverHTTP(t *testing.T) {
	e := start(t, server.Options{MinLongPolling: 1})
	post := func(path, body string, status int, words ...string) {
		t.Helper()
		adminCall(t, e, "POST", path, body, status, words...)
	}
	handle := func(m *rmqpb.Message) string {
		b := assert.Value(json.Marshal(m.GetSystemProperties().GetReceiptHandle()))(t)
		return string(b)
	}
	e.send(msg("normal", "m"))
	m := e.one(e.ctx(), receiveRequest("normal"))
	post("/v1/groups/g/reconsume-later", `{"handle":`+handle(m)+`}`, 400, "retry_topic.enabled")
	if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, SubscriptionType: "failover"}}); err != nil {
		t.Fatal(err)
	}
	post("/v1/groups/other/reconsume-later", `{"handle":`+handle(m)+`}`, 400, `"code": 40013`)
	post("/v1/groups/g/reconsume-later", `{"handle":"x"}`, 400, `"code": 40013`)
	post("/v1/groups/g/reconsume-later", `{"handle":`+handle(m)+`,"level":99}`, 400, "level: it is 99; give 1 to 18")
	post("/v1/groups/g/reconsume-later", `{"handle":`+handle(m)+`,"delay":"20ms"}`, 400, "1s to 240h0m0s")
	post("/v1/groups/g/reconsume-later", `{"handle":`+handle(m)+`,"later":1}`, 400, "handle, delay, level")
	post("/v1/groups/g/reconsume-later", `{"handle":`+handle(m)+`,"delay":"30s"}`, 200, `"topic": "normal-g-RETRY"`, `"reconsume_times": 1`, `"dead_letter": false`, `"delay": "0s"`)
	m = e.one(e.ctx(), receiveRequest("normal"))
	if p := m.GetUserProperties(); m.GetTopic().GetName() != "normal" || p["REAL_TOPIC"] != "normal" || p["RECONSUMETIMES"] != "1" || p["ORIGIN_MESSAGE_ID"] != "m" {
		t.Errorf("%s: %q", m.GetTopic(), p)
	}
	post("/v1/groups/g/negative-acknowledge", `{"handle":`+handle(m)+`,"delay":"-1s"}`, 400, `"code": 40011`)
	post("/v1/groups/g/negative-acknowledge", `{"handle":`+handle(m)+`,"delay":"1ns"}`, 200, `"fate": "again"`, `"delay": "1ns"`)
	post("/v1/groups/g/negative-acknowledge", `{"handle":`+handle(m)+`}`, 400, `"code": 40013`)
	m = e.one(e.ctx(), receiveRequest("normal"))
	if n := m.GetSystemProperties().GetDeliveryAttempt(); n != 2 || m.GetUserProperties()["RECONSUMETIMES"] != "1" {
		t.Errorf("attempt %d, %q", n, m.GetUserProperties())
	}
	ack, err := e.AckMessage(e.ctx(), &rmqpb.AckMessageRequest{
		Group: &rmqpb.Resource{Name: "g"}, Topic: m.GetTopic(),
		Entries: []*rmqpb.AckMessageEntry{{MessageId: m.GetSystemProperties().GetMessageId(), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()}},
	})
	assert.That(t, err == nil && ack.GetStatus().GetCode() == rmqpb.Code_OK, "%v, %v", ack, err)
	if w := fmt.Sprint(e.b.Topics()); !strings.Contains(w, "normal-g-RETRY") {
		t.Errorf("the topics are %s", w)
	}
}

// A redrive to one group needs the right to administer this group alone, because no other group
// receives the message. Its dry run counts without a change.
func TestRedriveToOneGroupOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := someAccess()
		access.Keys = append(access.Keys, server.Key{Name: "team", Secrets: []server.Secret{server.NewSecret(secretMark + "team")}, Allow: []server.Rule{{Actions: []server.Action{"admin"}, Groups: []string{"g"}}}})
		e := start(t, server.Options{Access: access})
		post := func(group, body string) (int, status.DeadLetterRedrive) {
			t.Helper()
			w := e.asKey("team", "POST", "/v1/groups/"+group+"/dead-letters/redrive", body)
			var done status.DeadLetterRedrive
			if w.Code == 200 {
				decode(t, w.Body.Bytes(), &done)
			}
			return w.Code, done
		}
		receive := func(group string) []*tidegate.Delivery {
			t.Helper()
			ds := assert.Value(e.b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: "normal", Queue: -1, InvisibleDuration: 1e9}))(t)
			return ds
		}
		e.b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "normal", Body: []byte("x")}})
		assert.Must(t, assert.Err(e.b.Settle(t.Context(), receive("g")[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "no"})))
		assert.Must(t, e.b.Ack(t.Context(), receive("h"))[0])
		for body, want := range map[string]int{`{}`: 403, `{"topic": "normal"}`: 403, `{"to_group_only": true, "to": "normal"}`: 400} {
			if code, _ := post("g", body); code != want {
				t.Errorf("%s: %d, want %d", body, code, want)
			}
		}
		if code, _ := post("h", `{"to_group_only": true}`); code != 403 {
			t.Errorf("of another group: %d", code)
		}
		for _, body := range []string{`{"to_group_only": true, "dry_run": true}`, `{"to_group_only": true}`} {
			if code, done := post("g", body); code != 200 || done.Redriven != 1 {
				t.Errorf("%s: %d %+v", body, code, done)
			}
		}
		if ds := receive("h"); len(ds) > 0 {
			t.Errorf("another group received %+v", ds[0])
		}
		if ds := receive("g"); len(ds) != 1 || ds[0].ID != "m" || ds[0].Topic != "normal" {
			t.Errorf("the group received %+v", ds)
		}
	})
}

// An edit of a dead letter is a message of the key. It needs the right to send to the topic, also
// to the group alone. The audit has the new ID.
func TestEditedRedriveOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := someAccess()
		admin := server.Rule{Actions: []server.Action{"admin"}, Groups: []string{"g"}}
		send := server.Rule{Actions: []server.Action{"send"}, Topics: []string{"normal"}}
		access.Keys = append(access.Keys, server.Key{Name: "team", Secrets: []server.Secret{server.NewSecret(secretMark + "team")}, Allow: []server.Rule{admin}},
			server.Key{Name: "sender", Secrets: []server.Secret{server.NewSecret(secretMark + "sender")}, Allow: []server.Rule{admin, send}})
		e := start(t, server.Options{Access: access})
		e.b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "normal", Body: []byte("x")}})
		ds := e.lease(1, transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: -1, InvisibleDuration: 1e9})
		assert.Must(t, assert.Err(e.b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "no"})))
		page, err := e.b.DeadLetters("g", status.DeadLetterQuery{})
		if err != nil || len(page.DeadLetters) != 1 {
			t.Fatal(page, err)
		}
		large := strings.Repeat("y", 1<<20) // more than a request of the administration may have
		edit := fmt.Sprintf(`"message_ids": ["m"], "to_group_only": true, "edit": {"queue": %d, "offset": %d, "body_text": %q, "keys": ["k"], "properties": {"p": "v", "gone": null}}`,
			page.DeadLetters[0].Queue, page.DeadLetters[0].Offset, large)
		for _, tt := range []struct {
			key, body string
			code      int
		}{
			{"team", `{` + edit + `}`, 403},
			{"team", `{"topic": "normal", ` + edit + `}`, 403},
			{"sender", `{` + edit + `}`, 403},
			{"sender", `{"topic": "other", ` + edit + `}`, 403},
			{"sender", `{"topic": "normal", "message_ids": ["m"], "to_group_only": true, "edit": {"body_text": "z"}}`, 400},
			{"sender", `{"topic": "normal", "dry_run": true, ` + edit + `}`, 200},
			{"sender", `{"topic": "normal", ` + edit + `}`, 200},
			{"sender", `{"topic": "normal", ` + edit + `}`, 200},
		} {
			w := e.asKey(tt.key, "POST", "/v1/groups/g/dead-letters/redrive", tt.body)
			assert.That(t, w.Code == tt.code, "%s, %.100s: %d, want %d: %s", tt.key, tt.body, w.Code, tt.code, w.Body)
		}
		ds, err = e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: -1, Max: 32, InvisibleDuration: 1e9})
		if err != nil || len(ds) != 1 || ds[0].ID != "m.redrive-1" || string(ds[0].Body) != large || ds[0].Properties["p"] != "v" {
			t.Errorf("%d messages came (%v), want the edited one", len(ds), err)
		}
		w := e.asKey("root", "GET", "/v1/audit?operation=redriveDeadLetters", "")
		var records status.AuditPage
		decode(t, w.Body.Bytes(), &records)
		var with int
		for _, a := range records.Records {
			if a.Query == "sent_as=m.redrive-1" && a.Key == "sender" && a.Result == "ok" {
				with++
			}
		}
		assert.That(t, with == 1, "the audit has %+v, want one record of the new ID", records.Records)
	})
}
