package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A delivery of a gRPC client can be retried over HTTP, and the group receives the message again
// from the same topic.
func TestRetryOverHTTP(t *testing.T) {
	e := start(t, server.Options{MinLongPolling: 1})
	post := func(path, body string, status int, words ...string) {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		checkHTTP(t, e.s.Handler()).ServeHTTP(w, r)
		if w.Code != status {
			t.Fatalf("POST %s %s: %d %s, want %d", path, body, w.Code, w.Body, status)
		}
		for _, word := range words {
			if !strings.Contains(w.Body.String(), word) {
				t.Errorf("POST %s %s: %s does not contain %s", path, body, w.Body, word)
			}
		}
	}
	handle := func(m *rmqpb.Message) string {
		b, err := json.Marshal(m.GetSystemProperties().GetReceiptHandle())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	e.send(msg("normal", "m"))
	m := e.one(e.ctx(), receiveRequest("normal"))
	post("/v1/groups/g/reconsume-later", `{"handle":`+handle(m)+`}`, 400, "retry_topic.enabled")
	if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, SubscriptionType: settings.SubscriptionFailover}}); err != nil {
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
	if err != nil || ack.GetStatus().GetCode() != rmqpb.Code_OK {
		t.Errorf("%v, %v", ack, err)
	}
	if w := fmt.Sprint(e.b.Topics()); !strings.Contains(w, "normal-g-RETRY") {
		t.Errorf("the topics are %s", w)
	}
}
