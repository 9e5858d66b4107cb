package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wire"
)

// One message over HTTP, with all that it can have, from the send to its end.
func TestHTTPMessage(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		var sent server.SendResult
		x.ok("/v1/topics/normal/messages", `{"id":"m1","body":"AP8=","tag":"a","keys":["k1","k2"],"properties":{"colour":"<red>"},
			"trace_context":"00-1","born_at":"2000-01-01T00:00:00+01:00","born_host":"h"}`, &sent)
		if sent.ID != "m1" || sent.Topic != "normal" || sent.Queue == nil || *sent.Offset != 0 || sent.RecallHandle != "" {
			t.Errorf("sent %+v", sent)
		}
		d := x.take("normal", `{"invisible_duration":"40s"}`, 1)[0]
		if d.ID != "m1" || string(d.Body) != "\x00\xff" || d.Tag != "a" || strings.Join(d.Keys, " ") != "k1 k2" || d.Properties["colour"] != "<red>" ||
			d.TraceContext != "00-1" || d.BornHost != "h" || d.BornAt.Unix() != 946681200 || d.Attempt != 1 || d.Group != "g" || d.Topic != "normal" ||
			d.StoredAt.IsZero() || time.Until(d.InvisibleUntil) != 40*time.Second || d.InvisibleFor != httpapi.Duration(40*time.Second) {
			t.Errorf("received %+v", d)
		}
		// A failure, first with the interval of the client, then with the group's.
		settle := func(what, more string) { x.ok("/v1/groups/g/"+what, `{"handle":"`+d.Handle+`"`+more+`}`, nil) }
		settle("retry", `,"after":"7s"`)
		began := time.Now()
		if d = x.take("normal", `{"wait":"20s"}`, 1)[0]; d.Attempt != 2 || time.Since(began) != 7*time.Second {
			t.Errorf("attempt %d after %v, want 2 after 7s", d.Attempt, time.Since(began))
		}
		settle("retry", `,"attempt":2`)
		began = time.Now()
		x.take("normal", `{"wait":"20s"}`, 0)
		if d = x.take("normal", `{"wait":"20s"}`, 1)[0]; d.Attempt != 3 || time.Since(began) != 30*time.Second {
			t.Errorf("attempt %d after %v, want 3 after 30s", d.Attempt, time.Since(began))
		}
		// More time.
		var changed server.ChangeResult
		x.ok("/v1/groups/g/change-invisible-duration", `{"handle":"`+d.Handle+`","invisible_duration":"1h"}`, &changed)
		assert.That(t, time.Until(changed.InvisibleUntil) == time.Hour && changed.Handle != d.Handle, "changed %+v", changed)
		x.failed("/v1/groups/g/acknowledge", `{"handles":["`+d.Handle+`"]}`, 400, 40013, "replaced")
		x.failed("/v1/groups/other/acknowledge", `{"handles":["`+changed.Handle+`"]}`, 400, 40013, `it belongs to group "g", not to "other"`)
		// Released at once, and without an attempt after a time.
		x.ok("/v1/groups/g/change-invisible-duration", `{"handle":"`+changed.Handle+`","invisible_duration":"0s"}`, nil)
		began = time.Now()
		attempt := x.take("normal", `{}`, 1)[0]
		d = attempt
		settle("snooze", `,"delay":"5s"`)
		if d = x.take("normal", `{"wait":"20s"}`, 1)[0]; d.Attempt != attempt.Attempt || time.Since(began) != 5*time.Second || time.Until(d.InvisibleUntil) != 30*time.Second {
			t.Errorf("attempt %d after %v, invisible until %v; want %d after 5s for 30s", d.Attempt, time.Since(began), d.InvisibleUntil, attempt.Attempt)
		}
		// The end.
		x.ok("/v1/groups/g/acknowledge", `{"handles":["`+d.Handle+`"]}`, nil)
		x.take("normal", `{"wait":"20s"}`, 0)

		x.ok("/v1/topics/normal/messages", `{"body_text":"häßlich"}`, &sent)
		if d = x.take("normal", `{"text":true,"push":true}`, 1)[0]; d.ID != sent.ID || len(sent.ID) != 34 || d.Body != nil || d.BodyText != "häßlich" {
			t.Errorf("received %+v", d)
		}
		var done server.RetryResult
		x.ok("/v1/groups/g/dead-letter", `{"handle":"`+d.Handle+`","reason":"ugly","attempt":5}`, &done)
		assert.Equal(t, "the fate", done.Fate, "dead_letter")
		settle("dead-letter", "") // it does nothing
		d = x.take("%25DLQ%25g", `{}`, 1)[0]
		if d.ID != sent.ID || d.Properties[protocol.PropertyDeadLetterReason] != "ugly" || d.Properties[protocol.PropertyDeadLetterAttempts] != "5" {
			t.Errorf("dead letter %+v", d)
		}
	})
}

// After a timeout of a push consumer the message follows the retry schedule; after that of a simple
// consumer it is ready at once (RocketMQ: consumption retry).
func TestHTTPTimeout(t *testing.T) {
	for push, want := range map[string]time.Duration{"true": 20 * time.Second, "false": 10 * time.Second} {
		withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
			x.send(msg("normal", "1"))
			body := `{"invisible_duration":"10s","wait":"20s","push":` + push + `}`
			x.take("normal", body, 1)
			began := time.Now()
			if d := x.take("normal", body, 1)[0]; d.Attempt != 2 || time.Since(began) != want {
				t.Errorf("push %s: attempt %d after %v; want 2 after %v", push, d.Attempt, time.Since(began), want)
			}
		})
	}
}

func TestHTTPDelay(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		var sent server.SendResult
		x.ok("/v1/topics/delay/messages", `{"body":"eA==","deliver_after":"15s"}`, &sent)
		assert.That(t, sent.RecallHandle != "" && sent.Queue == nil, "sent %+v", sent)
		began := time.Now()
		if x.take("delay", `{"wait":"20s"}`, 1); time.Since(began) != 15*time.Second {
			t.Errorf("delivered after %v", time.Since(began))
		}
		at := time.Now().Add(time.Minute).Format(time.RFC3339)
		x.ok("/v1/topics/delay/messages", `{"body":"eA==","deliver_at":"`+at+`"}`, &sent)
		var recalled server.RecallResult
		x.ok("/v1/topics/delay/recall", `{"recall_handle":"`+sent.RecallHandle+`"}`, &recalled)
		assert.That(t, recalled.ID == sent.ID, "recalled %+v, sent %+v", recalled, sent)
		x.failed("/v1/topics/delay/recall", `{"recall_handle":"`+sent.RecallHandle+`"}`, 404, 40401)
		x.failed("/v1/topics/delay/recall", `{"recall_handle":"x"}`, 400, 40000)
		x.failed("/v1/topics/delay/recall", `{}`, 400, 40000)
		x.failed("/v1/topics/delay/messages", `{"body":"eA==","deliver_after":"-1s"}`, 400, 40012, "-1s")
		x.failed("/v1/topics/delay/messages", `{"body":"eA==","deliver_after":"25h"}`, 400, 40012, "25h")
		x.failed("/v1/topics/delay/messages", `{"body":"eA==","deliver_at":"1969-01-01T00:00:00Z"}`, 400, 40012, "1969", "1970")
		x.failed("/v1/topics/delay/messages", `{"body":"eA==","deliver_after":"1s","deliver_at":"`+at+`"}`, 400, 40012, "exclude")
	})
}

func TestHTTPMany(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		var all server.Results[server.SendResult]
		if resp := x.do("/v1/topics/normal/messages", `{"messages":[{"id":"1","body":"eA=="},{"id":"2","body":"eA=="}]}`, &all); resp.StatusCode != 200 ||
			len(all.Results) != 2 || all.Results[0].ID != "1" || all.Results[1].ID != "2" {
			t.Errorf("%d %+v", resp.StatusCode, all)
		}
		// One is rejected alone.
		var some server.Results[server.SendResult]
		resp := x.do("/v1/topics/normal/messages", `{"messages":[{"id":"3","body":"eA=="},{"id":"4"},{"id":"5","body":"eA==","body_text":"x"},{"id":"6","body":"eA==","tag":"a|b"}]}`, &some)
		if resp.StatusCode != 207 || len(some.Results) != 4 || some.Results[0].Error != nil || some.Results[0].Offset == nil {
			t.Fatalf("%d %+v", resp.StatusCode, some)
		}
		for i, code := range map[int]int{1: 41302, 2: 40000, 3: 40004} {
			if r := some.Results[i]; r.Error == nil || r.Error.Code != code || r.ID != fmt.Sprint(i+3) || r.Offset != nil {
				t.Errorf("result %d is %+v, want code %d", i, r, code)
			}
		}
		// All are, for one reason: it is the request's.
		p := x.failed("/v1/topics/nowhere/messages", `{"messages":[{"id":"a","body":"eA=="},{"id":"b","body":"eA=="}]}`, 404, 40402, "nowhere")
		if list, _ := p.Results.([]any); len(list) != 2 {
			t.Errorf("results %+v", p.Results)
		}
		ds := x.take("normal", `{"max":32}`, 3)
		var acks server.Results[server.AckResult]
		resp = x.do("/v1/groups/g/acknowledge", `{"handles":["`+ds[0].Handle+`","nonsense","`+ds[1].Handle+`"]}`, &acks)
		if resp.StatusCode != 207 || acks.Results[0].Error != nil || acks.Results[1].Error.Code != 40013 || acks.Results[1].Handle != "nonsense" || acks.Results[2].Error != nil {
			t.Errorf("%d %+v", resp.StatusCode, acks)
		}
		g, err := x.b.Group("g")
		assert.That(t, err == nil && g.Topics[0].Acked == 2, "%+v, %v", g, err)
	})
}

// The body of the request is that of the message, and the query has its other fields.
func TestHTTPRaw(t *testing.T) {
	x := startWeb(t, server.Options{})
	raw := func(query, kind, body string) *http.Response {
		resp := assert.Value(x.client.Do(x.request(t.Context(), "POST", "/v1/topics/normal/messages"+query, strings.NewReader(body), "Content-Type", kind)))(t)
		resp.Body.Close()
		return resp
	}
	if resp := raw("?id=m&tag=a&key=1&key=2&property.Colour=r%C3%B6t&trace_context=t", server.TypeBytes, "\x00{"); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	d := x.take("normal", `{}`, 1)[0]
	if d.ID != "m" || d.Tag != "a" || strings.Join(d.Keys, " ") != "1 2" || d.Properties["Colour"] != "röt" || string(d.Body) != "\x00{" || d.BornHost == "" {
		t.Errorf("received %+v", d)
	}
	for query, want := range map[string]int{
		"?tags=a": 400, "?tag=a&tag=b": 400, "?deliver_at=soon": 400, "?deliver_after=soon": 400, "?deliver_after=1s": 400, "?property.=x": 400, "?message_group=g": 400, "": 200,
		"?property.rate=50%": 400, "?tag=a;b": 400, "?id=%GG": 400, "?tag=%": 400, "?tag=50%25%3B": 200,
	} {
		if resp := raw(query, "text/plain; charset=utf-8", "x"); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", query, resp.StatusCode, want)
		}
	}
	if resp := raw("", server.TypeBytes, strings.Repeat("x", 4<<20)); resp.StatusCode != 200 {
		t.Errorf("4 MiB: %s", resp.Status)
	}
	if resp := raw("", server.TypeBytes, strings.Repeat("x", 4<<20+1)); resp.StatusCode != 413 {
		t.Errorf("above 4 MiB: %s", resp.Status)
	}
	if resp := raw("", server.TypeBytes, strings.Repeat("x", 5<<20)); resp.StatusCode != 413 {
		t.Errorf("5 MiB: %s", resp.Status)
	}
}

// The error for a wrong request has the path of the field, and the request has no effect.
func TestHTTPRejections(t *testing.T) {
	x := startWeb(t, server.Options{})
	send, receive, ack := "/v1/topics/normal/messages", "/v1/groups/g/topics/normal/receive", "/v1/groups/g/acknowledge"
	big := base64.StdEncoding.EncodeToString(make([]byte, 4<<20+1))
	for _, c := range []struct {
		path, body   string
		status, code int
		words        []string
	}{
		{send, ``, 400, 40000, []string{"empty"}},
		{send, `{}`, 413, 41302, []string{"empty"}},
		{send, `[]`, 400, 40000, []string{"not a JSON object"}},
		{send, `{"body":"eA=="}x`, 400, 40000, []string{"after top-level value"}},
		{send, `{"body":"eA=="`, 400, 40000, []string{"truncated"}},
		{send, `{"body":eA}`, 400, 40000, []string{"byte 8"}},
		{send, `{"body":"eA==","tagg":"a"}`, 400, 40000, []string{`"tagg"`, "did you mean tag?"}},
		{send, `{"messages":[{"body":"eA=="},{"body":"eA==","propertys":{}}]}`, 400, 40000, []string{"messages[1]", "did you mean properties?"}},
		{send, `{"messages":[{"body":"eA=="},{"body":1}]}`, 400, 40000, []string{"messages[1].body", "a number (1)", "base64"}},
		{send, `{"messages":[{"body":"??"}]}`, 400, 40000, []string{"messages[0].body", "not base64", "body_text"}},
		{send, `{"text":"<x>"}`, 400, 40000, []string{`key "text" is unknown: the keys are id, body,`}},
		{receive, `{"filter":"a > b"}`, 400, 40000, []string{`filter is a string ("a > b"); give an object`}},
		{send, `{"messages":[{"properties":{"a":1}}]}`, 400, 40000, []string{"messages[0].properties.a", "a string"}},
		{send, `{"messages":{}}`, 400, 40000, []string{"messages is an object", "list"}},
		{send, `{"messages":[1]}`, 400, 40000, []string{"messages[0] is a number", "object"}},
		{send, `{"deliver_at":"tomorrow"}`, 400, 40000, []string{"deliver_at", "tomorrow", "RFC 3339"}},
		{send, `{"deliver_after":7}`, 400, 40000, []string{"deliver_after", "1m30s"}},
		{send, `{"messages":[{"tag":"a","properties":{"x":"1"}}],"messages":[{"body":"eA=="}]}`, 400, 40000, []string{`key "messages" is repeated`}},
		{send, `{"messages":[]}`, 400, 40000, []string{"0 entries", "1000"}},
		{send, `{"messages":[` + strings.Repeat(`{},`, 1000) + `{}]}`, 400, 40000, []string{"1001 entries", "1000"}},
		{send, `{"messages":[{"body":"eA=="}],"tag":"a"}`, 400, 40000, []string{"exclude each other"}},
		{send, "{\"body_text\":\"\xff\"}", 400, 40000, []string{"UTF-8 at byte 14"}},
		{send, `{"body_text":"\ud800x"}`, 400, 40000, []string{`\ud800`, "surrogate"}},
		{send, `{"body_text":"\\ud800","tag":"|"}`, 400, 40004, nil},
		{send, `{"body_text":"\ud83d\ude00","tag":"|"}`, 400, 40004, nil},
		{send, `{"body":"` + big + `"}`, 413, 41301, []string{"4194305"}},
		{send, `{"body":"` + strings.Repeat("x", 17<<20) + `"}`, 413, 41300, []string{"16777216"}},
		{send, `{"body":"eA==","properties":{"colour":7}}`, 400, 40000, []string{"properties.colour is a number (7)", "give a string"}},
		{send, `{"messages":[{"properties":["a=b"]}]}`, 400, 40000, []string{"messages[0].properties is a list; give an object"}},
		{send, `{"id":"` + strings.Repeat("x", 256) + `"}`, 400, 40009, []string{"256"}},
		{send, `{"body":"eA==","message_group":"g"}`, 400, 40014, []string{"send it without a message group"}},
		{"/v1/topics/fifo/messages", `{"body":"eA=="}`, 400, 40014, []string{"give the message a message group"}},
		{"/v1/topics/delay/messages", `{"body":"eA=="}`, 400, 40014, []string{"give the message a delivery time"}},
		{"/v1/topics/a%20b/messages", `{"body":"eA=="}`, 400, 40002, nil},
		{"/v1/topics/none/messages", `{"body":"eA=="}`, 404, 40402, nil},
		{receive, `{"max":0}`, 400, 40000, []string{"max is 0", "32"}},
		{receive, `{"max":33}`, 400, 40000, []string{"33", "application/x-ndjson"}},
		{receive, `{"max":"1"}`, 400, 40000, []string{"max", "whole number"}},
		{receive, `{"wait":"-1s"}`, 400, 40018, []string{"-1s"}},
		{receive, `{"invisible_duration":"13h"}`, 400, 40011, []string{"13h"}},
		{receive, `{"filter":{"type":"XPATH"}}`, 400, 40010, []string{"XPATH", "SQL92"}},
		{receive, `{"filter":{"expresion":"a"}}`, 400, 40000, []string{"filter", "did you mean expression?"}},
		{receive, `{"filter":{"type":"SQL92","expression":"a >"}}`, 400, 40010, nil},
		{"/v1/groups/a%20b/topics/normal/receive", `{}`, 400, 40003, nil},
		{"/v1/groups/g/topics/none/receive", `{}`, 404, 40402, nil},
		{ack, `{"handles":[]}`, 400, 40000, []string{"0 entries"}},
		{ack, `{"handle":"x"}`, 400, 40000, []string{"did you mean handles?"}},
		{ack, `{"handles":["x"]}`, 400, 40013, nil},
		{"/v1/groups/a%20b/acknowledge", `{"handles":["x"]}`, 400, 40003, nil},
		{"/v1/groups/none/retry", `{"handle":"x"}`, 404, 40403, nil},
		{"/v1/groups/g/retry", `{"handle":"x","after":"1s","attempt":1}`, 400, 40000, []string{"after", "attempt", "exclude"}},
		{"/v1/groups/g/retry", `{"handle":"x","attempt":-1}`, 400, 40000, []string{"-1"}},
		{"/v1/groups/none/retry", `{"handle":"x","attempt":1}`, 404, 40403, nil},
		{"/v1/groups/g/retry", `{"handle":"x","after":"1s"}`, 400, 40013, nil},
		{"/v1/groups/g/retry", `{"handle":"x","after":"-1s"}`, 400, 40011, nil},
		{"/v1/groups/g/retry", `{"handle":"x","after":"-2562047h47m16.854775808s"}`, 400, 40011, nil}, // the least that there is
		{"/v1/groups/g/change-invisible-duration", `{"handle":"x"}`, 400, 40011, []string{"missing"}},
		{"/v1/groups/g/snooze", `{"handle":"x"}`, 400, 40011, []string{"delay is missing"}},
		{"/v1/groups/g/snooze", `{"handle":"x","delay":"1s"}`, 400, 40013, nil},
		{"/v1/groups/g/snooze", `{"handle":"x","delay":"5"}`, 400, 40000, []string{"delay"}},
		{ack, `{"handles":"x"}`, 400, 40000, []string{"handles"}},
		{receive, `{"max_bytes":-1}`, 400, 40000, []string{"max_bytes"}},
		{receive, `{"repeat":true}`, 400, 40000, []string{"attempt ID"}},
		{"/v1/groups/g/dead-letter", `{}`, 400, 40013, nil},
	} {
		x.failed(c.path, c.body, c.status, c.code, c.words...)
	}
	topic, err := x.b.Topic("normal")
	assert.That(t, err == nil && topic.StoredMessages == 0, "%d messages were stored, %v", topic.StoredMessages, err)
}

func TestHTTPHeaders(t *testing.T) {
	x := startWeb(t, server.Options{})
	for _, c := range []struct {
		method, path string
		header       []string
		status, code int
		words        []string
	}{
		{"POST", "/v1/topics/normal/messages", nil, 415, 40000, []string{"missing", "curl"}},
		{"POST", "/v1/topics/normal/messages", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, 40000, []string{"urlencoded", "application/x-ndjson"}},
		{"POST", "/v1/topics/normal/messages", []string{"Content-Type", server.TypeJSON, "Content-Encoding", "gzip"}, 415, 40000, []string{"gzip"}},
		{"POST", "/v1/topics/normal/messages?tag=a", []string{"Content-Type", server.TypeJSON}, 400, 40000, []string{"tag=a"}},
		{"POST", "/v1/topics/normal/messages", []string{"Content-Type", server.TypeJSON, wire.HeaderClientID, strings.Repeat("c", 256)}, 400, 40017, []string{"256"}},
		{"POST", "/v1/groups/g/acknowledge", []string{"Content-Type", server.TypeText}, 415, 40000, nil},
		{"POST", "/v1/groups/g/topics/normal/receive", []string{"Content-Type", server.TypeNDJSON}, 415, 40000, nil},
		{"GET", "/v1/topics/normal/recall", nil, 405, 0, []string{"POST"}},
		// The requests of a page of another origin.
		{"POST", "/v1/topics/normal/messages", []string{"Content-Type", server.TypeText, "Origin", "https://evil.example"}, 403, 40300, []string{"evil.example"}},
		{"DELETE", "/v1/topics/normal", []string{"Sec-Fetch-Site", "cross-site"}, 403, 40300, nil},
	} {
		w := x.serve(x.request(t.Context(), c.method, c.path, strings.NewReader(`{"body":"eA=="}`), c.header...))
		var p server.Problem
		decode(t, w.Body.Bytes(), &p)
		x.problem(c.method+" "+c.path+fmt.Sprint(c.header), w.Code, p, c.status, c.code, c.words...)
	}
}

// RocketMQ: sending retry and throttling: "reply-code:530"
func TestHTTPThrottled(t *testing.T) {
	f := &faulty{append: func(context.Context, []engine.Incoming) error {
		return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: 1200 * time.Millisecond, Message: "530 TOO_MANY_REQUESTS: enough"}
	}}
	x := startWeb(t, server.Options{}, f)
	for _, body := range []string{`{"body":"eA=="}`, `{"messages":[{"body":"eA=="},{"body":"eA=="}]}`} {
		var p server.Problem
		resp := x.do("/v1/topics/normal/messages", body, &p)
		if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "2" || p.ReplyCode != 530 || p.Code != 42900 ||
			p.RetryAfter != settings.Duration(1200*time.Millisecond) || p.Detail != "530 TOO_MANY_REQUESTS: enough" {
			t.Errorf("%s: %d %v %+v", body, resp.StatusCode, resp.Header, p)
		}
	}
	// The response reports messages that may be stored.
	f.append = func(context.Context, []engine.Incoming) error {
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Message: "disk"}
	}
	if p := x.failed("/v1/topics/normal/messages", `{"body":"eA=="}`, 500, 50001, "disk"); !p.MaybeStored {
		t.Errorf("%+v", p)
	}
}

// Each client has its quota: by the header, or by its address.
func TestHTTPClient(t *testing.T) {
	var clients []string
	x := startWeb(t, server.Options{}, &faulty{append: func(_ context.Context, in []engine.Incoming) error {
		clients = append(clients, in[0].Client)
		return nil
	}})
	x.ok("/v1/topics/normal/messages", `{"body":"eA=="}`, nil)
	x.ok("/v1/topics/normal/messages", `{"body":"eA=="}`, nil, wire.HeaderClientID, "me")
	assert.That(t, len(clients) == 2 && clients[0] != "" && clients[1] == "me", "clients %q", clients)
}

func TestHTTPOpenAPI(t *testing.T) {
	x := startWeb(t, server.Options{})
	resp := assert.Value(x.client.Do(x.request(t.Context(), "GET", "/v1/openapi.yaml", nil)))(t)
	defer resp.Body.Close()
	want := assert.Value(os.ReadFile("openapi.yaml"))(t)
	if text, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(text, want) || resp.Header.Get("Content-Type") != "application/yaml" {
		t.Errorf("%v %v", resp.Header, err)
	}
}

// A failure without an interval: the group's interval after that attempt passes.
func TestHTTPRetryKnowsTheAttempt(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		assert.Must(t, assert.Err(x.b.PutGroup(t.Context(), "g", settings.Group{Retry: []time.Duration{time.Second, 9 * time.Second}})))
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
		// Address settings of the topic have priority.
		assert.Must(t, assert.Err(x.b.PutAddressSettings(t.Context(), "normal", settings.Address{RedeliveryDelay: new(settings.Milliseconds(7))})))
		d := x.take("normal", `{"wait":"10s"}`, 1)[0]
		var done server.RetryResult
		x.ok("/v1/groups/g/retry", `{"handle":"`+d.Handle+`"}`, &done)
		assert.That(t, done.Delay != nil && *done.Delay == settings.Duration(7*time.Millisecond), "the delay is %v, want 7ms", done.Delay)
	})
}

// Every JSON body is decoded without loss, or rejected as a bad request with a text. Every stored
// message is received.
func FuzzHTTPSend(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `{"body":"eA=="}`, `{"id":"i","body_text":"é\u00e9","keys":["a"],"properties":{"a":"b"},"message_group":"g"}`,
		`{"messages":[{"body":"eA=="},{"bodi":1}]}`, `{"body_text":"\ud800"}`, "{\"tag\":\"\xff\"}", `{"deliver_at":"2026-01-01T00:00:00Z","born_at":null}`,
		`{"messages":[[[`, `{"deliver_after":"1h","deliver_at":1}`, `{"TAG":"a","body":"eA=="}`,
	} {
		f.Add([]byte(s))
	}
	e := start(f, server.Options{})
	e.s.WrapHTTP(func(h http.Handler) http.Handler { return h }) // without the comparison, which is for the other tests
	f.Fuzz(func(t *testing.T, text []byte) {
		var m server.Message
		err := server.Decode(text, &m)
		var plain map[string]any
		assert.That(t, err != nil || json.Unmarshal(text, &plain) == nil, "it is not JSON, but decoded to %+v", m)
		assert.That(t, err == nil || refusal.CodeOf(err) == tidegate.CodeBadRequest && len(err.Error()) >= 20, "refused with %v", err)
		for _, kind := range []string{server.TypeJSON, server.TypeNDJSON} {
			r := httptest.NewRequest("POST", "/v1/topics/normal/messages", bytes.NewReader(text))
			r.Header.Set("Content-Type", kind)
			w := e.serve(r)
			assert.That(t, w.Code < 500, "%d %s", w.Code, w.Body)
			for line := range bytes.Lines(w.Body.Bytes()) {
				assert.That(t, kind != server.TypeNDJSON || json.Unmarshal(line, new(server.SendResult)) == nil, "the response is %q", line)
			}
		}
	})
}

var document = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(context.Background(), openapi3.IsOpenAPI31OrLater()) // for all tests
})

func loadDocument(t testing.TB) *openapi3.T {
	t.Helper()
	doc := assert.Value(document())(t)
	return doc
}

// Every route and method that the server has is in openapi.yaml, with its
// operation's name, and the reverse.
func TestOpenAPIHasAllRoutes(t *testing.T) {
	doc := loadDocument(t)
	missing := map[string]string{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			missing[method+" "+path] = op.OperationID
			assert.That(t, op.Summary != "" && len(op.Tags) == 1, "%s %s has no summary, or not one tag", method, path)
		}
	}
	ops := map[string]bool{}
	for _, rt := range start(t, server.Options{}).s.Routes() {
		key := rt.Method + " " + rt.Path
		if op, ok := missing[key]; !ok {
			t.Errorf("openapi.yaml has no %s (operationId %s)", key, rt.Op)
		} else if op != rt.Op || ops[op] {
			t.Errorf("%s is %q in openapi.yaml and %q in routes, or another one has that name", key, op, rt.Op)
		}
		ops[rt.Op] = true
		delete(missing, key)
	}
	for key := range missing {
		t.Errorf("openapi.yaml has %s, which the server does not serve", key)
	}
}

// The package comment has every route too, and no other one.
func TestPackageCommentHasAllRoutes(t *testing.T) {
	text := assert.Value(os.ReadFile("server.go"))(t)
	text, _, _ = bytes.Cut(text, []byte("\npackage server"))
	told := map[string]bool{}
	for _, m := range regexp.MustCompile(`([A-Z]+(?:, [A-Z]+)*) (/[^\s:;]+)`).FindAllStringSubmatch(string(text), -1) {
		for method := range strings.SplitSeq(m[1], ", ") {
			told[method+" "+m[2]] = true
		}
	}
	for _, rt := range start(t, server.Options{}).s.Routes() {
		assert.That(t, told[rt.Pattern], "the package comment has no %s", rt.Pattern)
		delete(told, rt.Pattern)
	}
	for route := range told {
		t.Errorf("the package comment has %s, which there is not", route)
	}
}

// The fields of a schema are those of the Go type, and the reverse.
func TestOpenAPISchemas(t *testing.T) {
	schemas := loadDocument(t).Components.Schemas
	for name, v := range map[string]any{
		"TopicConfig": settings.Topic{}, "Topic": status.Topic{}, "GroupConfig": settings.Group{}, "Group": status.Group{},
		"Subscription": status.Subscription{}, "Backlog": status.Backlog{}, "Limit": settings.Limit{}, "Throttle": status.Throttle{},
		"LimitState": status.LimitState{}, "Limits": settings.Limits{}, "Rate": settings.Rate{}, "Quota": settings.Quota{}, "Pressure": settings.Pressure{}, "ThrottleState": status.Throttles{},
		"Problem": server.Problem{}, "Message": server.Message{}, "SendResult": server.SendResult{}, "Delivery": httpapi.Delivery{},
		"ReceiveRequest": server.ReceiveRequest{}, "AcknowledgeRequest": server.AckRequest{}, "ChangeInvisibleDurationRequest": server.ChangeRequest{},
		"ChangeInvisibleDurationResult": server.ChangeResult{}, "RetryRequest": server.RetryRequest{}, "DeadLetterRequest": server.DeadLetterRequest{},
		"ReconsumeRequest": server.ReconsumeRequest{}, "Reconsumed": server.ReconsumeResult{}, "RetryResult": server.RetryResult{}, "SnoozeRequest": server.SnoozeRequest{}, "NegativeAckRequest": server.NegativeAckRequest{},
		"RetryTopicConfig": settings.RetryTopic{}, "NegativeAckConfig": settings.NegativeAck{},
		"AddressSettings": settings.Address{}, "AddressSetting": status.Address{}, "TopicAddressSettings": status.TopicAddress{},
		"RecallRequest": server.RecallRequest{}, "RecallResult": server.RecallResult{}, "Status": struct {
			Status string `json:"status"`
		}{},
		"Live": server.Live{}, "History": engine.HistoryResult{}, "HistorySeries": engine.HistorySeries{}, "HistoryLeftOut": engine.HistoryLeftOut{}, "HistoryCounters": engine.HistoryCounters{}, "TopicSummaries": server.TopicSummaries{}, "GroupSummaries": server.GroupSummaries{},
		"AuditPage": status.AuditPage{}, "AuditRecord": status.AuditRecord{},
		"ClientPage": status.ClientPage{}, "Client": status.Client{}, "ClientVersion": status.ClientVersion{},
		"Session": status.Session{}, "Rule": status.Rule{},
		"Overview": status.Overview{}, "Storage": status.Storage{}, "MemoryUse": status.MemoryUse{}, "Totals": status.Totals{}, "Counters": status.Counters{},
		"Top": status.Top{}, "Wrong": status.Wrong{}, "FoundGroups": status.Found[status.GroupSummary]{}, "TopicSummary": status.TopicSummary{}, "GroupSummary": status.GroupSummary{},
		"RewindRequest": server.RewindRequest{}, "RewindResult": server.RewindResult{}, "QueueRewind": status.QueueRewind{}, "ParkedPage": status.ParkedPage{},
		"ParkedGroup": status.ParkedGroup{}, "ParkedSelection": server.ParkedRedriveRequest{}, "ParkedRedrive": status.ParkedRedrive{},
		"Topics": server.TopicList{}, "Groups": server.GroupList{}, "Trace": status.Trace{}, "TracedMessage": status.TracedMessage{}, "Fate": status.Fate{}, "MessagePage": status.MessagePage{}, "StoredMessage": status.StoredMessage{},
		"QueuePage": status.QueuePage{}, "Queue": status.Queue{}, "GroupQueuePage": status.GroupQueuePage{}, "GroupQueue": status.GroupQueue{},
		"LeasePage": status.LeasePage{}, "Lease": status.Lease{}, "Schedule": status.Schedule{}, "DueBucket": status.DueBucket{},
		"FailurePage": status.FailurePage{}, "Failure": status.Failure{},
		"DeadLetterCount": status.DeadLetterCount{}, "DeadLetterClassPage": status.DeadLetterClassPage{}, "DeadLetterClass": status.DeadLetterClass{},
		"DeadLetterPage": status.DeadLetterPage{}, "DeadLetter": status.DeadLetter{}, "DeadLetterOrigin": tidegate.DeadLetter{},
		"DeadLetterSelection": status.DeadLetterSelection{}, "DeadLetterRedrive": status.DeadLetterRedrive{}, "DeadLetterPurge": status.DeadLetterPurge{},
	} {
		ref := schemas[name]
		if ref == nil {
			t.Errorf("openapi.yaml has no schema %s", name)
			continue
		}
		have := properties(ref.Value)
		want := server.Keys(reflect.TypeOf(v))
		for _, key := range want {
			assert.That(t, have[key], "schema %s has no property %s, which %T has", name, key, v)
			delete(have, key)
		}
		for key := range have {
			t.Errorf("schema %s has the property %s, which %T has not", name, key, v)
		}
	}
}

// The broker has a counter for each limit, which TestNamesAreComplete of package engine
// compares with the constants. Two of the counters belong to no Throttle.
func TestOpenAPIThrottleLimits(t *testing.T) {
	b := assert.Value(broker.Open(broker.Options{}))(t)
	defer b.Close()
	want := b.Engine().Stats().Throttled
	delete(want, "client quota") // the error of the send reports it
	delete(want, "other")
	limit := loadDocument(t).Components.Schemas["ThrottleFields"].Value.Properties["limit"]
	for _, name := range limit.Value.Enum {
		if _, ok := want[name.(string)]; !ok {
			t.Errorf("openapi.yaml has the limit %q, which the broker does not have", name)
		}
		delete(want, name.(string))
	}
	for name := range want {
		t.Errorf("openapi.yaml does not have the limit %q of the broker", name)
	}
}

func properties(s *openapi3.Schema) map[string]bool {
	out := map[string]bool{}
	for key := range s.Properties {
		out[key] = true
	}
	for _, part := range s.AllOf {
		maps.Copy(out, properties(part.Value))
	}
	return out
}

// checkHTTP returns h with a comparison of every accepted request, and of every response, with
// openapi.yaml.
func checkHTTP(t testing.TB, h http.Handler) http.Handler {
	doc := loadDocument(t)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sent []byte
		if r.Header.Get("Content-Type") != server.TypeNDJSON && r.Body != nil {
			var err error
			if sent, err = io.ReadAll(r.Body); err == nil {
				r.Body = io.NopCloser(bytes.NewReader(sent))
			}
		}
		rec := &taped{ResponseWriter: w}
		h.ServeHTTP(rec, r)
		_, path, ok := strings.Cut(r.Pattern, " ")
		if !ok { // 404 and 405
			if rec.status < 400 || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s: %d of type %s without a route", r.Method, r.URL, rec.status, w.Header().Get("Content-Type"))
			}
			return
		}
		item := doc.Paths.Value(path)
		if item == nil || item.GetOperation(r.Method) == nil && r.Method != "HEAD" {
			return // TestOpenAPIHasAllRoutes reports it
		}
		checkExchange(t, r, routers.Route{Spec: doc, Path: path, PathItem: item, Method: r.Method, Operation: item.GetOperation(r.Method)}, sent, rec)
	})
}

// exchanges has the number of exchanges by operation and status, as *atomic.Int64.
var exchanges sync.Map

// checkExchange compares the first three exchanges of an operation with a status, and a part of the
// others: the library compiles the schema for each.
func checkExchange(t testing.TB, r *http.Request, route routers.Route, sent []byte, rec *taped) {
	if route.Operation == nil { // HEAD
		return
	}
	n, _ := exchanges.LoadOrStore(fmt.Sprint(route.Operation.OperationID, rec.status), new(atomic.Int64))
	if n := n.(*atomic.Int64).Add(1); n > 3 && int(n)%everyExchange() != 0 {
		return
	}
	what := r.Method + " " + r.URL.String()
	params := map[string]string{}
	for _, key := range []string{"topic", "group", "match", "id", "consumer", "lite_topic"} {
		if v := r.PathValue(key); v != "" {
			params[key] = v
		}
	}
	copied := r.Clone(context.WithoutCancel(r.Context()))
	copied.Body = io.NopCloser(bytes.NewReader(sent))
	stream := r.Header.Get("Content-Type") == server.TypeNDJSON
	if given := r.Header.Get("Content-Type"); slices.Contains(route.Operation.Tags, "administration") && (given == "" || given == "application/x-www-form-urlencoded") {
		copied.Header.Set("Content-Type", server.TypeJSON) // it needs none, and curl sends another
	}
	in := &openapi3filter.RequestValidationInput{
		Request: copied, PathParams: params, Route: &route, Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeRequestBody: stream},
	}
	if rec.status < 300 {
		if err := openapi3filter.ValidateRequest(copied.Context(), in); err != nil {
			t.Errorf("%s was accepted, but not by openapi.yaml: %v", what, err)
		}
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: rec.status, Header: rec.Header(), Options: in.Options,
	}
	if rec.Header().Get("Content-Type") == server.TypeNDJSON {
		schema := "SendResult"
		switch route.Operation.OperationID {
		case "receiveMessages":
			schema = "Delivery"
		case "live":
			schema = "Live"
		case "listEndedLite":
			schema = "EndedLiteTopic"
		}
		checkLines(t, route.Spec, what, schema, rec.tape.Bytes())
		return
	}
	if ct := rec.Header().Get("Content-Type"); strings.HasPrefix(ct, "application/yaml") || strings.HasPrefix(ct, server.TypeText) {
		return
	}
	if err := openapi3filter.ValidateResponse(copied.Context(), out.SetBodyBytes(rec.tape.Bytes())); err != nil {
		t.Errorf("%s: the response %d does not match openapi.yaml: %v\n%s", what, rec.status, err, rec.tape.Bytes())
	}
}

// everyExchange returns 5, or 1 with the flag -model.all.
func everyExchange() int { return 6 - model.Rounds(5) }

// checkLines compares each line of a stream with a schema.
func checkLines(t testing.TB, doc *openapi3.T, what, schema string, text []byte) {
	lines := slices.Collect(bytes.Lines(text))
	every := everyExchange()
	for i, line := range lines {
		if i >= 20 && i < len(lines)-2 && i%every != 0 {
			continue
		}
		var v map[string]any
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := json.Unmarshal(line, &v); err != nil {
			assert.That(t, i >= len(lines)-1, "%s: line %d is not JSON: %v", what, i+1, err)
			continue // cut off
		}
		use := schema
		if _, last := v["error"]; last {
			use = "SendResult"
		}
		if err := doc.Components.Schemas[use].Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
			t.Errorf("%s: line %d is not as schema %s: %v\n%s", what, i+1, use, err, line)
		}
	}
}

// taped records the responses.
type taped struct {
	http.ResponseWriter
	status int // 0: none yet
	tape   bytes.Buffer
}

func (w *taped) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *taped) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.tape.Write(b)
	return w.ResponseWriter.Write(b)
}

func (w *taped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// The check itself can fail.
func TestOpenAPICheckFindsUnknownFields(t *testing.T) {
	schemas := loadDocument(t).Components.Schemas
	for name, v := range map[string]string{
		"TopicConfig": `{"queue":1}`, "Topic": `{"name":"a","x":1}`, "Message": `{"topic":"a"}`, "Limit": `{"messages":-1}`,
		"Duration": `"soon"`, "ReceiveRequest": `{"max":0}`, "AcknowledgeRequest": `{"handles":[]}`, "Problem": `{"status":400}`,
	} {
		var decoded any
		assert.Must(t, json.Unmarshal([]byte(v), &decoded))
		if err := schemas[name].Value.VisitJSON(decoded, openapi3.EnableJSONSchema2020()); err == nil {
			t.Errorf("schema %s takes %s", name, v)
		}
	}
}
