package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// adminCall makes a request of the administration, and expects the status and words of the
// response.
func adminCall(t *testing.T, e *env, method, path, body string, status int, words ...string) string {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", server.TypeJSON)
	}
	checkHTTP(t, e.s.Handler()).ServeHTTP(w, r)
	if w.Code != status {
		t.Errorf("%s %s %.80s: %d, want %d: %s", method, path, body, w.Code, status, w.Body)
	}
	for _, word := range words {
		if !strings.Contains(w.Body.String(), word) {
			t.Errorf("%s %s %.80s: the response does not contain %s: %s", method, path, body, word, w.Body)
		}
	}
	return w.Body.String()
}

// fail makes n messages of a topic fail for group g until they have no attempts left.
func fail(t *testing.T, e *env, topic, messageGroup string, n int) {
	t.Helper()
	for i := range n {
		m := &tidegate.Message{ID: fmt.Sprint(topic, i), Topic: topic, MessageGroup: messageGroup, Properties: map[string]string{"k": "v"}, Body: []byte("body")}
		if err := e.b.Send(t.Context(), []*tidegate.Message{m})[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: topic, Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		if _, err := e.b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry}); err != nil {
			t.Fatal(err)
		}
	}
}

func putGroup(t *testing.T, e *env, c settings.Group) {
	t.Helper()
	if _, err := e.b.PutGroup(t.Context(), "g", c); err != nil {
		t.Fatal(err)
	}
}

func TestAdminDeadLetters(t *testing.T) {
	e := start(t, server.Options{})
	putGroup(t, e, settings.Group{MaxAttempts: 1})
	const path = "/v1/groups/g/dead-letters"
	adminCall(t, e, "GET", path, "", 200, `"dead_letters": []`)
	adminCall(t, e, "GET", "/v1/groups/h/dead-letters", "", 404, "40403")
	fail(t, e, "normal", "", 3)

	var page status.DeadLetterPage
	if err := json.Unmarshal([]byte(adminCall(t, e, "GET", path+"?limit=2&topic=normal&reason=delivery&since=2020-01-01T00:00:00Z", "", 200)), &page); err != nil {
		t.Fatal(err)
	}
	if len(page.DeadLetters) != 2 || page.Next == "" {
		t.Fatalf("%+v", page)
	}
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
	if _, err := e.b.PutTopic(t.Context(), "normal", settings.Topic{MaxBacklog: settings.Limit{Messages: 1}}); err != nil {
		t.Fatal(err)
	}
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
	adminCall(t, e, "GET", "/v1/topics/normal", "", 200, `"stored_messages": 3`)
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
		if got := m.GetSystemProperties().GetMessageId(); got != id {
			t.Fatalf("received %s, want %s", got, id)
		}
		for range 2 { // they repeat it
			r, err := e.ForwardMessageToDeadLetterQueue(e.ctx(), &rmqpb.ForwardMessageToDeadLetterQueueRequest{
				Group: res("g"), Topic: res("fifo"), MessageId: id, DeliveryAttempt: attempt, MaxDeliveryAttempts: 3,
				ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
			})
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatalf("%v, %v", r, err)
			}
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
