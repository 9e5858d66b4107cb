package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

func TestHTTPCredentials(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	at := time.Now().UTC().Format("20060102T150405Z")
	basic := func(key, secret string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(key, secret) }
	}
	sign := func(secret string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("X-Mq-Date-Time", at)
			r.Header.Set("Authorization", signature("monitor", secret, at))
		}
	}
	const far, near, tls = "http://h", "near", "https://h"
	for name, c := range map[string]struct {
		from   string
		edit   func(*http.Request)
		status int
		reason string // counted; empty: none
	}{
		"Basic over TLS":              {tls, basic("monitor", "sesame-monitor"), 200, ""},
		"Basic on this machine":       {near, basic("monitor", "sesame-monitor"), 200, ""},
		"Basic for all to read":       {far, basic("monitor", "sesame-monitor"), 401, "password_in_plain_text"},
		"Basic, wrong":                {tls, basic("monitor", "sesame-admin"), 401, "wrong_credentials"},
		"Basic, unknown":              {tls, basic("who", "sesame-admin"), 401, "wrong_credentials"},
		"Basic, without rights":       {tls, basic("producer", "sesame-producer"), 403, "forbidden"},
		"Basic, odd":                  {tls, func(r *http.Request) { r.Header.Set("Authorization", "Basic sesame-") }, 401, "malformed"},
		"Bearer":                      {tls, func(r *http.Request) { r.Header.Set("Authorization", "Bearer sesame-monitor") }, 401, "malformed"},
		"two":                         {tls, func(r *http.Request) { r.Header["Authorization"] = []string{"a", "b"} }, 401, "malformed"},
		"a signature for all to read": {far, sign("sesame-monitor"), 200, ""},
		"a wrong signature":           {near, sign("sesame-admin"), 401, "wrong_credentials"},
		"nothing":                     {near, func(*http.Request) {}, 401, "no_credentials"},
		"nothing, by a script":        {near, func(r *http.Request) { r.Header.Set("Sec-Fetch-Mode", "cors") }, 401, "no_credentials"},
		"nothing, by an address line": {near, func(r *http.Request) { r.Header.Set("Sec-Fetch-Mode", "navigate") }, 401, "no_credentials"},
	} {
		before, _ := scrapedBy(t, e.s)
		r := httptest.NewRequest("GET", "/v1/topics", nil)
		switch c.from {
		case near:
			r.RemoteAddr = "127.0.0.1:4711"
		case tls:
			r = httptest.NewRequest("GET", "https://h/v1/topics", nil)
		}
		c.edit(r)
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		challenges := w.Header().Values("WWW-Authenticate")
		if want := map[bool]int{false: 2, true: 1}[c.from == far || name == "nothing, by a script"]; w.Code == 401 && (len(challenges) != want || !slices.Contains(challenges, "MQv2-HMAC-SHA1")) || w.Code != 401 && challenges != nil {
			t.Errorf("%s: WWW-Authenticate %q", name, challenges)
		}
		if w.Code > 400 && (!strings.Contains(w.Body.String(), fmt.Sprintf(`"code": %d00`, w.Code)) || w.Header().Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %s %s", name, w.Header().Get("Content-Type"), w.Body)
		}
		after, _ := scrapedBy(t, e.s)
		for sample, n := range after {
			if reason, ok := strings.CutPrefix(sample, "tidegate_access_refusals_total{reason="); ok {
				if want := before[sample] + map[bool]float64{true: 1}[reason == fmt.Sprintf("%q}", c.reason)]; n != want {
					t.Errorf("%s: %s is %v, want %v", name, sample, n, want)
				}
			}
		}
	}
}

// Over HTTP, only a key that may receive from the topic of a handle can settle it.
func TestHandlesOverHTTP(t *testing.T) {
	e := start(t, server.Options{Access: someAccess(), MinLongPolling: 1})
	root := signed(t.Context(), "root")
	handle := func(topic, group string) string {
		if _, err := e.SendMessage(root, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg(topic, topic+group, func(m *rmqpb.Message) {
			if topic == "fifo" {
				m.SystemProperties.MessageGroup = new("m")
			}
		})}}); err != nil {
			t.Fatal(err)
		}
		return e.one(root, receiveRequest(topic, func(r *rmqpb.ReceiveMessageRequest) { r.Group.Name = group })).GetSystemProperties().GetReceiptHandle()
	}
	own, foreign := handle("normal", "g"), handle("fifo", "g")
	post := func(path, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "https://h"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.SetBasicAuth("consumer", secretMark+"consumer")
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r)
		return w
	}
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v1/groups/g/acknowledge", fmt.Sprintf(`{"handles":[%q]}`, foreign), 403},
		{"/v1/groups/g/change-invisible-duration", fmt.Sprintf(`{"handle":%q,"invisible_duration":"1m"}`, foreign), 403},
		{"/v1/groups/g/retry", fmt.Sprintf(`{"handle":%q,"after":"1m"}`, foreign), 403},
		{"/v1/groups/g/snooze", fmt.Sprintf(`{"handle":%q,"delay":"1m"}`, foreign), 403},
		{"/v1/groups/g/dead-letter", fmt.Sprintf(`{"handle":%q}`, foreign), 403},
		{"/v1/groups/h/acknowledge", fmt.Sprintf(`{"handles":[%q]}`, own), 403},
		{"/v1/groups/g/acknowledge", `{"handles":["odd"]}`, 400},
		{"/v1/groups/g/topics/fifo/receive", `{}`, 403},
		{"/v1/topics/normal/messages", `{"body":"x"}`, 403},
		{"/v1/groups/g/acknowledge", fmt.Sprintf(`{"handles":[%q,%q]}`, foreign, own), 207},
		{"/v1/groups/g/acknowledge", fmt.Sprintf(`{"handles":[%q]}`, own), 400}, // it was acknowledged
	} {
		if w := post(c.path, c.body); w.Code != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.path, c.body, w.Code, w.Body, c.status)
		}
	}
	// Nothing was done to it.
	r, err := e.AckMessage(root, &rmqpb.AckMessageRequest{Topic: res("fifo"), Group: res("g"), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: foreign}}})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, r.GetStatus(), protocol.CodeOK)
}

// A consumer with permissions for its topic and group only can settle the retries that it received,
// for any name of the retry topic.
func TestRetriesOverHTTP(t *testing.T) {
	for name, c := range map[string]settings.RetryTopic{
		"one for each topic": {},
		"one for all":        {Naming: settings.RetryNaming272},
		"named":              {Topic: "again", DeadLetterTopic: "dead"},
		"all named but one":  {Topic: "again"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.Enabled = true
			naming := c
			if naming.Naming == "" {
				naming.Naming = settings.RetryNaming292
			}
			retry, dead := naming.Topics("orders", "billing")
			consumer := server.Key{Name: "consumer", Secrets: []server.Secret{server.NewSecret("s")}, Allow: []server.Rule{
				{Actions: []server.Action{server.ActionReceive}, Topics: []string{"orders"}, Groups: []string{"billing"}},
				{Actions: []server.Action{server.ActionSend}, Topics: []string{retry, dead}},
			}}
			e := start(named{t, name}, server.Options{Access: server.AccessConfig{Keys: []server.Key{consumer}}, MinLongPolling: 1})
			if _, err := e.b.PutTopic(t.Context(), "orders", settings.Topic{}); err != nil {
				t.Fatal(err)
			}
			if _, err := e.b.PutGroup(t.Context(), "billing", settings.Group{RetryTopic: c}); err != nil {
				t.Fatal(err)
			}
			post := func(status int, path, body string, args ...any) (text string) {
				t.Helper()
				r := httptest.NewRequest("POST", "https://h/v1/groups/billing/"+path, strings.NewReader(fmt.Sprintf(body, args...)))
				r.Header.Set("Content-Type", "application/json")
				r.SetBasicAuth("consumer", "s")
				w := httptest.NewRecorder()
				if e.s.Handler().ServeHTTP(w, r); w.Code != status {
					t.Errorf("%s: %s: %d %s, want %d", name, path, w.Code, w.Body, status)
				}
				return w.Body.String()
			}
			take := func() string {
				t.Helper()
				var got received
				decode(t, []byte(post(200, "topics/orders/receive", `{"wait":"1m"}`)), &got)
				if len(got.Messages) != 1 || got.Messages[0].Topic != "orders" {
					t.Fatalf("%s: %+v", name, got)
				}
				return got.Messages[0].Handle
			}
			for _, settle := range []string{"change-invisible-duration", "snooze", "retry", "negative-acknowledge", "reconsume-later", "dead-letter", "acknowledge"} {
				if r := e.b.Send(t.Context(), []*tidegate.Message{{ID: settle, Topic: "orders", Body: []byte("x")}}); r[0].Err != nil {
					t.Fatal(r[0].Err)
				}
				post(200, "reconsume-later", `{"handle":%q,"delay":"1s"}`, take())
				h := take()
				switch settle {
				case "change-invisible-duration":
					var changed server.ChangeResult
					decode(t, []byte(post(200, settle, `{"handle":%q,"invisible_duration":"1m"}`, h)), &changed)
					h = changed.Handle
				case "snooze":
					post(204, settle, `{"handle":%q,"delay":"1m"}`, h)
					time.Sleep(time.Minute)
					h = take()
				case "retry", "negative-acknowledge":
					post(200, settle, `{"handle":%q}`, h)
					time.Sleep(time.Minute)
					h = take()
				case "reconsume-later":
					post(200, settle, `{"handle":%q}`, h)
					h = take()
				case "dead-letter":
					post(200, settle, `{"handle":%q}`, h)
					continue
				}
				post(200, "acknowledge", `{"handles":[%q]}`, h)
			}
		})
	}
}

// TDMQ for Pulsar: retry and dead letters: "When a token is used to access the retry/dead letter
// queue, you need to grant the message production permission to the role used by the consumer"
func TestReconsumeLaterNeedsToSend(t *testing.T) {
	for granted, status := range map[string]int{"": 403, "normal-g-RETRY": 403, "normal-g-*": 200} {
		allow := []server.Rule{{Actions: []server.Action{server.ActionReceive}, Topics: []string{"*"}, Groups: []string{"*"}}}
		if granted != "" {
			allow = append(allow, server.Rule{Actions: []server.Action{server.ActionSend}, Topics: []string{granted}})
		}
		c := server.AccessConfig{Keys: []server.Key{{Name: "consumer", Secrets: []server.Secret{server.NewSecret("s")}, Allow: allow}}}
		e := start(t, server.Options{Access: c, MinLongPolling: 1})
		if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}); err != nil {
			t.Fatal(err)
		}
		if r := e.b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "normal", Body: []byte("x")}}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: -1, InvisibleDuration: time.Minute})
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		r := httptest.NewRequest("POST", "https://h/v1/groups/g/reconsume-later", strings.NewReader(fmt.Sprintf(`{"handle":%q,"delay":"1s"}`, ds[0].Handle)))
		r.Header.Set("Content-Type", "application/json")
		r.SetBasicAuth("consumer", "s")
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r)
		if w.Code != status {
			t.Errorf("with a right to send to %q: %d %s, want %d", granted, w.Code, w.Body, status)
		}
	}
}

// Names in the body of a request need permissions of their own. An administrator of a group cannot
// send to other topics through its dead letters, cannot throttle a topic by rewinding the group
// there, and cannot read a topic as the group's retry topic.
func TestBodiesNeedRights(t *testing.T) {
	allow := []server.Rule{
		{Actions: []server.Action{server.ActionAdmin}, Topics: []string{"fifo"}, Groups: []string{"g"}},
		{Actions: []server.Action{server.ActionSend}, Topics: []string{"fifo", "out", "again"}},
		{Actions: []server.Action{server.ActionReceive}, Topics: []string{"again"}, Groups: []string{"g"}},
	}
	e := start(t, server.Options{Access: server.AccessConfig{Keys: []server.Key{{Name: "team", Secrets: []server.Secret{server.NewSecret("s")}, Allow: allow}}}})
	if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.b.Rewind(t.Context(), "g", "normal", status.Position{Earliest: true}); err != nil {
		t.Fatal(err)
	}
	type request struct {
		method, path, body string
		status             int
	}
	requests := []request{
		{"POST", "/v1/groups/g/rewind", `{"topic":"fifo","to":"earliest"}`, 200},
		{"POST", "/v1/groups/g/rewind", `{"topic":"normal","to":"earliest"}`, 403},
		{"GET", "/v1/groups/g/parked?topic=fifo", "", 200},
		{"GET", "/v1/groups/g/parked?topic=normal", "", 403},
		{"GET", "/v1/groups/g/parked", "", 403}, // g has received from normal too
		{"POST", "/v1/groups/g/parked/redrive", `{"topic":"fifo"}`, 200},
		{"POST", "/v1/groups/g/parked/redrive", `{"topic":"normal"}`, 403},
		{"POST", "/v1/groups/g/parked/redrive", `{"topic":"nowhere"}`, 403},
		{"POST", "/v1/groups/g/parked/redrive", `{}`, 403},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{"to":"fifo"}`, 200},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{"to":"normal"}`, 403},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{"topic":"fifo"}`, 200},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{"topic":"fifo","to":"normal"}`, 403},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{}`, 403},
		// The response does not reveal whether the topic exists: normal is there, nowhere is not.
		{"GET", "/v1/groups/g/dead-letters?dead_letter_topic=%25DLQ%25g", "", 404},
		{"GET", "/v1/groups/g/dead-letters?dead_letter_topic=again", "", 404},
		{"GET", "/v1/groups/g/dead-letters?dead_letter_topic=normal", "", 403},
		{"GET", "/v1/groups/g/dead-letters?dead_letter_topic=fifo", "", 200},             // it may observe,
		{"GET", "/v1/groups/g/dead-letters?dead_letter_topic=fifo&bodies=true", "", 403}, // and not receive
		{"GET", "/v1/groups/g/dead-letters?dead_letter_topic=nowhere", "", 403},
		{"DELETE", "/v1/groups/g/dead-letters?all=true&dead_letter_topic=fifo", "", 200},
		{"DELETE", "/v1/groups/g/dead-letters?all=true&dead_letter_topic=normal", "", 403},
		{"DELETE", "/v1/groups/g/dead-letters?all=true&dead_letter_topic=nowhere", "", 403},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{"to":"fifo","dead_letter_topic":"normal"}`, 403},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{"to":"fifo","dead_letter_topic":"nowhere"}`, 403},
		{"PUT", "/v1/groups/g", `{"retry_topic":{"enabled":true}}`, 200},
		{"PUT", "/v1/groups/g", `{"retry_topic":{"enabled":true,"dead_letter_topic":"normal"}}`, 403},
		{"PUT", "/v1/groups/g", `{"retry_topic":{"enabled":true,"dead_letter_topic":"out"}}`, 200},
		{"PUT", "/v1/groups/g", `{"retry_topic":{"enabled":true,"topic":"out"}}`, 403},
		{"PUT", "/v1/groups/g", `{"retry_topic":{"topic":"out"}}`, 403}, // to be enabled later
		{"PUT", "/v1/groups/g", `{"retry_topic":{"enabled":true,"topic":"normal"}}`, 403},
		{"PUT", "/v1/groups/g", `{"retry_topic":{"enabled":true,"topic":"again"}}`, 200},
	}
	for _, c := range requests { // a change needs the same permissions
		if c.method == "PUT" {
			requests = append(requests, request{"PATCH", c.path, c.body, c.status})
		}
	}
	for _, c := range requests {
		r := httptest.NewRequest(c.method, "https://h"+c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		r.SetBasicAuth("team", "s")
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%s %s %s: %d %s, want %d", c.method, c.path, c.body, w.Code, w.Body, c.status)
		}
	}
}

// Keys and properties of dead letters are data of the sender, as bodies are: a key that may only
// observe does not see them.
func TestKeysOfDeadLettersNeedRights(t *testing.T) {
	observer := server.Key{Name: "observer", Secrets: []server.Secret{server.NewSecret("of observer")}, Allow: []server.Rule{{Actions: []server.Action{server.ActionObserve}, Topics: []string{"*"}, Groups: []string{"*"}}}}
	owner := server.Key{Name: "owner", Secrets: []server.Secret{server.NewSecret("of owner")}, Allow: []server.Rule{{Actions: []server.Action{server.ActionAdmin}, Topics: []string{"*"}, Groups: []string{"*"}}}}
	reader := server.Key{Name: "reader", Secrets: []server.Secret{server.NewSecret("of reader")}, Allow: []server.Rule{{Actions: []server.Action{server.ActionObserve, server.ActionReceive}, Topics: []string{"*"}, Groups: []string{"*"}}}}
	e := start(t, server.Options{Access: server.AccessConfig{Keys: []server.Key{observer, owner, reader}}})
	ctx := t.Context()
	if r := e.b.Send(ctx, []*tidegate.Message{{Topic: "normal", ID: "01", Body: []byte("x"), Keys: []string{"the-key"}, Tag: "the-tag", Properties: map[string]string{"p": "the-property"}}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	ds, err := e.b.Receive(ctx, transport.ReceiveRequest{Group: "g", Topic: "normal", Max: 1, InvisibleDuration: time.Minute, Queue: transport.AnyQueue})
	if err != nil || len(ds) != 1 {
		t.Fatal(ds, err)
	}
	if _, err := e.b.Settle(ctx, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "the-reason"}); err != nil {
		t.Fatal(err)
	}
	for key, reads := range map[string]bool{"observer": false, "owner": false, "reader": true} {
		r := httptest.NewRequest("GET", "https://h/v1/groups/g/dead-letters", http.NoBody)
		r.SetBasicAuth(key, "of "+key)
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r)
		for text, want := range map[string]bool{"the-key": reads, "the-property": reads, "the-tag": true, "the-reason": true} {
			if w.Code != 200 || strings.Contains(w.Body.String(), text) != want {
				t.Errorf("%s sees %q: %t, want %t: %d %s", key, text, !want, want, w.Code, w.Body)
			}
		}
	}
}

// Abandoned transactions are half messages of all topics: a key that may receive as any group, but
// not from any topic, can neither read nor move them.
func TestAbandonedTransactionsAreNoGroupsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(name, topics string) server.Key {
			return server.Key{Name: name, Secrets: []server.Secret{server.NewSecret(secretMark + name)}, Allow: []server.Rule{
				{Actions: []server.Action{server.ActionReceive, server.ActionAdmin, server.ActionSend}, Topics: []string{topics}, Groups: []string{"*"}},
			}}
		}
		e := withTransactions(t, server.Options{Access: server.AccessConfig{Keys: []server.Key{key("orders", "orders*"), key("all", "*")}}})
		if _, err := e.b.PutTopic(t.Context(), "tx", settings.Topic{Transaction: settings.Transaction{CheckMax: 1}}); err != nil {
			t.Fatal(err)
		}
		half := msg("tx", "half", sys(func(p *rmqpb.SystemProperties) { p.MessageType = rmqpb.MessageType_TRANSACTION }))
		if r, err := e.SendMessage(signed(t.Context(), "all"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{half}}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Fatal(r, err)
		}
		time.Sleep(time.Hour) // it is given up
		const group = "TRANS_CHECK_MAX_TIME_TOPIC"
		for _, c := range []struct{ method, path, body string }{
			{"GET", "/v1/groups/" + group + "/dead-letters?bodies=true", ""},
			{"POST", "/v1/groups/" + group + "/dead-letters/redrive", `{"to":"orders","limit":1}`},
			{"POST", "/v1/groups/g/topics/%25DLQ%25" + group + "/receive", `{}`},
			{"POST", "/v1/groups/" + group + "/topics/%25DLQ%25" + group + "/receive", `{}`},
			{"DELETE", "/v1/groups/" + group + "/dead-letters?all=true", ""},
		} {
			for who, status := range map[string]int{"orders": 403, "all": 200} {
				if c.method == "POST" && strings.HasSuffix(c.path, "redrive") && who == "all" {
					continue // the half message is to be there for those after it
				}
				r := httptest.NewRequest(c.method, "https://h"+c.path, strings.NewReader(c.body))
				r.Header.Set("Content-Type", "application/json")
				r.SetBasicAuth(who, secretMark+who)
				w := httptest.NewRecorder()
				if e.s.Handler().ServeHTTP(w, r); w.Code != status || c.method != "DELETE" && status == 200 && !strings.Contains(w.Body.String(), "half") {
					t.Errorf("%s %s by %s: %d %s, want %d", c.method, c.path, who, w.Code, w.Body, status)
				}
			}
		}
	})
}
