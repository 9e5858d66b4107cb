package server_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// The beginning of the secrets of these tests: it must not appear in any output of a server.
const secretMark = "sesame-"

// someAccess has a key for each role; the secret of key k is "sesame-k".
func someAccess() server.AccessConfig {
	key := func(name string, allow ...server.Rule) server.Key {
		return server.Key{Name: name, Secrets: []server.Secret{server.NewSecret(secretMark + name)}, Allow: allow}
	}
	all := []string{"*"}
	return server.AccessConfig{Keys: []server.Key{
		key("producer", server.Rule{Actions: []server.Action{"send"}, Topics: []string{"norm*"}}),
		key("consumer", server.Rule{Actions: []server.Action{"receive"}, Topics: []string{"norm*"}, Groups: []string{"g"}}),
		key("monitor", server.Rule{Actions: []server.Action{"observe"}, Topics: all, Groups: all}),
		key("admin", server.Rule{Actions: []server.Action{"admin"}, Topics: all, Groups: all}),
		key("root", server.Rule{Actions: []server.Action{"admin", "send", "receive"}, Topics: all, Groups: all}),
		key("nothing"),
	}}
}

// signature returns the value of the header authorization for a date-time.
func signature(key, secret, dateTime string) string {
	mac := hmac.New(sha1.New, []byte(secret))
	mac.Write([]byte(dateTime))
	return "MQv2-HMAC-SHA1 Credential=" + key + "//Rocketmq, SignedHeaders=x-mq-date-time, Signature=" + hex.EncodeToString(mac.Sum(nil))
}

// signed returns a context with the headers of a client and a signature by its key.
func signed(ctx context.Context, key string) context.Context { return signedIn(ctx, key, "GO") }

// signedIn is signed for a client of a language.
func signedIn(ctx context.Context, key, language string) context.Context {
	at := time.Now().UTC().Format("20060102T150405Z")
	return as(ctx, "client", wire.HeaderLanguage, language, wire.HeaderDateTime, at, wire.HeaderAuthorization, signature(key, secretMark+key, at))
}

// call makes the RPC of a name with an empty request, and returns the first status.
func (e *env) call(ctx context.Context, name string) (*rmqpb.Status, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := rmqpb.File_tidegate_rmq_v2_service_proto.Services().Get(0).Methods().ByName(protoreflect.Name(name))
	message := func(d protoreflect.MessageDescriptor) proto.Message {
		typ := assert.Value(protoregistry.GlobalTypes.FindMessageByName(d.FullName()))(e.t)
		return typ.New().Interface()
	}
	s, err := e.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: d.IsStreamingServer(), ClientStreams: d.IsStreamingClient()},
		"/"+rmqpb.MessagingService_ServiceDesc.ServiceName+"/"+name)
	if err != nil {
		return nil, err
	}
	if err := s.SendMsg(message(d.Input())); err != nil && err != io.EOF {
		return nil, err
	}
	if !d.IsStreamingClient() {
		if err := s.CloseSend(); err != nil {
			return nil, err
		}
	}
	answer := message(d.Output())
	if err := s.RecvMsg(answer); err != nil {
		return nil, err
	}
	m := answer.ProtoReflect()
	st, _ := m.Get(m.Descriptor().Fields().ByName("status")).Message().Interface().(*rmqpb.Status)
	return st, nil
}

// Every HTTP route there is has a row in the table, and the other way around.
func TestEveryRouteIsGuarded(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	forEveryKey := []string{"POST /v1/session", "GET /v1/session", "DELETE /v1/session", "GET /v1/clients", "GET /v1/history"}
	routes := map[string]bool{}
	for _, rt := range slices.Concat(e.s.Routes(), e.s.Pages()) {
		pattern := rt.Method + " " + rt.Path
		routes[pattern] = true
		needs, known := auth.Routes[pattern]
		assert.That(t, known, "%q is not in httpNeeds: add the permission that it needs", pattern)
		method, path := rt.Method, strings.NewReplacer("{topic}", "normal", "{group}", "g").Replace(rt.Path)
		w := e.serve(httptest.NewRequest(method, path, nil))
		if open := w.Code != http.StatusUnauthorized; open != (needs == nil) {
			t.Errorf("%s without credentials: %d", pattern, w.Code)
		}
		if needs != nil && rt.Op != "live" { // its stream has no end; routeTable has the route
			w = e.asKey("nothing", method, path, "")
			if refused := w.Code == http.StatusForbidden; refused == slices.Contains(forEveryKey, pattern) {
				t.Errorf("%s by a key without rights: %d %s", pattern, w.Code, w.Body)
			}
		}
	}
	for pattern := range auth.Routes {
		assert.That(t, routes[pattern], "httpNeeds has %q, which is no route", pattern)
	}
	added := e.s.Unlisted()
	for key, want := range map[string]int{"admin": 200, "monitor": 403} {
		r := httptest.NewRequest("GET", "https://h/new", nil)
		r.SetBasicAuth(key, secretMark+key)
		w := httptest.NewRecorder()
		if added(w, r); w.Code != want {
			t.Errorf("a route that is not in the table, by %s: %d, want %d", key, w.Code, want)
		}
	}
}

// A key that may send may not receive, and the reverse. Topics and groups count.
func TestRights(t *testing.T) {
	withServer(t, server.Options{Access: someAccess()}, func(t *testing.T, e *env) {
		producer, consumer, root := signed(t.Context(), "producer"), signed(t.Context(), "consumer"), signed(t.Context(), "root")
		send := func(ctx context.Context, topics ...string) *rmqpb.Status {
			q := &rmqpb.SendMessageRequest{}
			for i, topic := range topics {
				q.Messages = append(q.Messages, msg(topic, fmt.Sprint(topic, i)))
			}
			r := assert.Value(e.SendMessage(ctx, q))(t)
			return r.GetStatus()
		}
		refused(t, send(producer, "normal"), protocol.CodeOK)
		refused(t, send(producer, "fifo"), tidegate.CodeForbidden, `producer is not permitted to send to topic "fifo"`)
		refused(t, send(producer, "normal", "fifo"), tidegate.CodeForbidden, `"fifo"`)
		refused(t, send(producer, "nowhere"), tidegate.CodeForbidden) // not: there is no such topic
		refused(t, send(consumer, "normal"), tidegate.CodeForbidden)
		refused(t, send(root, "nowhere"), tidegate.CodeTopicNotFound)

		group := func(name string) func(*rmqpb.ReceiveMessageRequest) {
			return func(r *rmqpb.ReceiveMessageRequest) { r.Group.Name = name }
		}
		st, _ := e.receive(producer, receiveRequest("normal"))
		refused(t, st, tidegate.CodeForbidden, `producer is not permitted to receive from topic "normal" as group "g"`)
		st, _ = e.receive(consumer, receiveRequest("normal", group("other")))
		refused(t, st, tidegate.CodeForbidden)
		assert.That(t, assert.Err(e.b.Group("other")) != nil, "a rejected receive created the group")
		st, _ = e.receive(consumer, receiveRequest("fifo"))
		refused(t, st, tidegate.CodeForbidden)
		m := e.one(consumer, receiveRequest("normal"))

		// The rights follow the topic and group of a handle, not the names beside it in the
		// request.
		foreign := e.one(root, receiveRequest("normal", group("other")))
		for name, c := range map[string]struct {
			topic, group, handle string
			code                 tidegate.Code
		}{
			"of another group, named as ours": {"normal", "g", foreign.GetSystemProperties().GetReceiptHandle(), tidegate.CodeInvalidReceiptHandle},
			"of another group":                {"normal", "other", foreign.GetSystemProperties().GetReceiptHandle(), tidegate.CodeForbidden},
			"ours, named as of another topic": {"normal2", "g", m.GetSystemProperties().GetReceiptHandle(), tidegate.CodeInvalidReceiptHandle},
			"without names":                   {"", "", m.GetSystemProperties().GetReceiptHandle(), tidegate.CodeForbidden},
			"ours":                            {"normal", "g", m.GetSystemProperties().GetReceiptHandle(), protocol.CodeOK},
		} {
			if name != "ours" {
				r, err := e.ChangeInvisibleDuration(consumer, &rmqpb.ChangeInvisibleDurationRequest{
					Topic: res(c.topic), Group: res(c.group), ReceiptHandle: c.handle, InvisibleDuration: durationpb.New(time.Minute),
				})
				assert.Must(t, err)
				refused(named{t, name + ", change"}, r.GetStatus(), c.code)
				f, err := e.ForwardMessageToDeadLetterQueue(as(consumer, "client", wire.HeaderReason, "x"), &rmqpb.ForwardMessageToDeadLetterQueueRequest{
					Topic: res(c.topic), Group: res(c.group), ReceiptHandle: c.handle,
				})
				assert.Must(t, err)
				refused(named{t, name + ", dead letter"}, f.GetStatus(), c.code)
			}
			r, err := e.AckMessage(consumer, &rmqpb.AckMessageRequest{
				Topic: res(c.topic), Group: res(c.group), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: c.handle}},
			})
			assert.Must(t, err)
			refused(named{t, name + ", ack"}, r.GetStatus(), c.code)
		}
		r := assert.Value(e.QueryRoute(consumer, &rmqpb.QueryRouteRequest{Topic: res("normal")}))(t)
		refused(t, r.GetStatus(), protocol.CodeOK)
	})
}

// A rejected Telemetry stream gets a command with the status, and ends. It makes no group.
func TestTelemetryRights(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	other := subscriber("normal")
	other.GetSubscription().Group = res("h")
	for name, c := range map[string]struct {
		ctx  context.Context
		say  *rmqpb.Settings
		code tidegate.Code
		ends codes.Code
	}{
		"a consumer":                 {signed(t.Context(), "consumer"), subscriber("normal"), protocol.CodeOK, codes.OK},
		"another group":              {signed(t.Context(), "consumer"), other, tidegate.CodeForbidden, codes.PermissionDenied},
		"another topic of its group": {signed(t.Context(), "consumer"), subscriber("fifo"), tidegate.CodeForbidden, codes.PermissionDenied},
		"not a consumer":             {signed(t.Context(), "producer"), subscriber("normal"), tidegate.CodeForbidden, codes.PermissionDenied},
		"a producer":                 {signed(t.Context(), "producer"), producer("normal"), protocol.CodeOK, codes.OK},
		"another topic":              {signed(t.Context(), "producer"), producer("fifo"), tidegate.CodeForbidden, codes.PermissionDenied},
		"no key":                     {e.ctx(), producer("normal"), tidegate.CodeUnauthorized, codes.Unauthenticated},
	} {
		s, err := e.Telemetry(c.ctx)
		assert.Must(t, err)
		_ = s.Send(command(c.say)) // the rejection may have come before
		answer, err := s.Recv()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		refused(named{t, name}, answer.GetStatus(), c.code)
		if c.code != protocol.CodeOK {
			ended(named{t, name}, s, c.ends, answer.GetStatus())
			if c.code != tidegate.CodeForbidden {
				continue
			}
			// RocketMQ's Java client shows the failure of the route that it asks for next.
			for language, code := range map[string]tidegate.Code{"JAVA": tidegate.CodeForbidden, "GO": protocol.CodeOK} {
				key := map[bool]string{true: "consumer", false: "producer"}[strings.Contains(name, "group")]
				r := assert.Value(e.QueryRoute(signedIn(t.Context(), key, language), &rmqpb.QueryRouteRequest{Topic: res("normal"), Endpoints: &rmqpb.Endpoints{}}))(t)
				if refused(named{t, name + " " + language}, r.GetStatus(), code); code != protocol.CodeOK && r.GetStatus().GetMessage() != answer.GetStatus().GetMessage() {
					t.Errorf("%s: the route has the status %v, want that of the stream", name, r.GetStatus())
				}
			}
		} else if err := s.CloseSend(); err != nil {
			t.Error(err)
		}
	}
	assert.That(t, assert.Err(e.b.Group("h")) != nil, "a rejected consumer created its group")
}

// A client can end another one only if both have one key.
func TestClientsAreOfTheirKey(t *testing.T) {
	withServer(t, server.Options{Access: someAccess()}, func(t *testing.T, e *env) {
		parked := make(chan *rmqpb.Status, 1)
		go func() {
			st, _ := e.receive(signed(t.Context(), "consumer"), receiveRequest("normal"))
			parked <- st
		}()
		synctest.Wait()
		for _, key := range []string{"producer", "consumer"} {
			assert.Must(t, assert.Err(e.NotifyClientTermination(signed(t.Context(), key), &rmqpb.NotifyClientTerminationRequest{})))
			synctest.Wait()
			if ended := len(parked) == 1; ended != (key == "consumer") {
				t.Errorf("a termination by %s ended the receive: %t", key, ended)
			}
		}
	})
}

// The limit of the time in signatures, which a setting changes while the server runs.
func TestClockSkewAndReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := someAccess()
		e := start(t, server.Options{Access: c})
		ctx := signed(t.Context(), "producer")
		try := func() *rmqpb.Status {
			r := assert.Value(e.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")}))(t)
			return r.GetStatus()
		}
		refused(t, try(), protocol.CodeOK)
		time.Sleep(access.DefaultMaxClockSkew + time.Second)
		refused(t, try(), tidegate.CodeUnauthorized, "x-mq-date-time", "15m0s")
		c.MaxClockSkew = time.Hour
		for _, step := range []struct {
			c    server.AccessConfig
			code tidegate.Code
		}{
			{c, protocol.CodeOK},
			{server.AccessConfig{Keys: c.Keys[1:], MaxClockSkew: time.Hour}, tidegate.CodeUnauthorized}, // without this key
			{server.AccessConfig{Keys: []server.Key{{Name: "producer", Secrets: []server.Secret{server.NewSecret("new"), c.Keys[0].Secrets[0]}, Allow: c.Keys[0].Allow}}, MaxClockSkew: -1}, protocol.CodeOK},
			{server.AccessConfig{Keys: []server.Key{{Name: "producer", Secrets: []server.Secret{server.NewSecret("new")}, Allow: c.Keys[0].Allow}}, MaxClockSkew: -1}, tidegate.CodeUnauthorized},
			{server.AccessConfig{}, protocol.CodeOK}, // nothing is restricted
		} {
			assert.Must(t, e.s.SetAccess(step.c))
			refused(t, try(), step.code)
		}
		if err := e.s.SetAccess(server.AccessConfig{Keys: []server.Key{{Name: secretMark, Secrets: []server.Secret{server.NewSecret(secretMark)}, Allow: []server.Rule{{}}}}}); err == nil {
			t.Error("a rule without actions is accepted")
		}
		refused(t, try(), protocol.CodeOK) // as before
	})
}

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
		w := e.serve(r)
		assert.That(t, w.Code == c.status, "%s: %d %s", name, w.Code, w.Body)
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
		w := e.asKey("consumer", "POST", c.path, c.body)
		assert.That(t, w.Code == c.status, "%s %s: %d %s, want %d", c.path, c.body, w.Code, w.Body, c.status)
	}
	// Nothing was done to it.
	r := assert.Value(e.AckMessage(root, &rmqpb.AckMessageRequest{Topic: res("fifo"), Group: res("g"), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: foreign}}}))(t)
	refused(t, r.GetStatus(), protocol.CodeOK)
}

// A consumer with permissions for its topic and group only can settle the retries that it received,
// for any name of the retry topic.
func TestRetriesOverHTTP(t *testing.T) {
	for name, c := range map[string]settings.RetryTopic{
		"one for each topic": {},
		"one for all":        {Naming: "2.7.2"},
		"named":              {Topic: "again", DeadLetterTopic: "dead"},
		"all named but one":  {Topic: "again"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.Enabled = true
			naming := c
			if naming.Naming == "" {
				naming.Naming = "2.9.2"
			}
			retry, dead := naming.Topics("orders", "billing")
			consumer := server.Key{Name: "consumer", Secrets: []server.Secret{server.NewSecret(secretMark + "consumer")}, Allow: []server.Rule{
				{Actions: []server.Action{"receive"}, Topics: []string{"orders"}, Groups: []string{"billing"}},
				{Actions: []server.Action{"send"}, Topics: []string{retry, dead}},
			}}
			e := start(named{t, name}, server.Options{Access: server.AccessConfig{Keys: []server.Key{consumer}}, MinLongPolling: 1})
			assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "orders", settings.Topic{})))
			assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "billing", settings.Group{RetryTopic: c})))
			post := func(status int, path, body string, args ...any) (text string) {
				t.Helper()
				w := e.asKey("consumer", "POST", "/v1/groups/billing/"+path, fmt.Sprintf(body, args...))
				assert.That(t, w.Code == status, "%s: %s: %d %s, want %d", name, path, w.Code, w.Body, status)
				return w.Body.String()
			}
			take := func() string {
				t.Helper()
				var got received
				decode(t, []byte(post(200, "topics/orders/receive", `{"wait":"1m"}`)), &got)
				assert.MustThat(t, len(got.Messages) == 1 && got.Messages[0].Topic == "orders", "%s: %+v", name, got)
				return got.Messages[0].Handle
			}
			for _, settle := range []string{"change-invisible-duration", "snooze", "retry", "negative-acknowledge", "reconsume-later", "dead-letter", "acknowledge"} {
				assert.Must(t, e.b.Send(t.Context(), []*tidegate.Message{{ID: settle, Topic: "orders", Body: []byte("x")}})[0].Err)
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
		allow := []server.Rule{{Actions: []server.Action{"receive"}, Topics: []string{"*"}, Groups: []string{"*"}}}
		if granted != "" {
			allow = append(allow, server.Rule{Actions: []server.Action{"send"}, Topics: []string{granted}})
		}
		c := server.AccessConfig{Keys: []server.Key{{Name: "consumer", Secrets: []server.Secret{server.NewSecret(secretMark + "consumer")}, Allow: allow}}}
		e := start(t, server.Options{Access: c, MinLongPolling: 1})
		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})))
		assert.Must(t, e.b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "normal", Body: []byte("x")}})[0].Err)
		ds := e.lease(1, transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: -1, InvisibleDuration: time.Minute})
		w := e.asKey("consumer", "POST", "/v1/groups/g/reconsume-later", fmt.Sprintf(`{"handle":%q,"delay":"1s"}`, ds[0].Handle))
		assert.That(t, w.Code == status, "with a right to send to %q: %d %s, want %d", granted, w.Code, w.Body, status)
	}
}

// Names in the body of a request need permissions of their own. An administrator of a group cannot
// send to other topics through its dead letters, cannot throttle a topic by rewinding the group
// there, and cannot read a topic as the group's retry topic.
func TestBodiesNeedRights(t *testing.T) {
	allow := []server.Rule{
		{Actions: []server.Action{"admin"}, Topics: []string{"fifo"}, Groups: []string{"g"}},
		{Actions: []server.Action{"send"}, Topics: []string{"fifo", "out", "again"}},
		{Actions: []server.Action{"receive"}, Topics: []string{"again"}, Groups: []string{"g"}},
	}
	e := start(t, server.Options{Access: server.AccessConfig{Keys: []server.Key{{Name: "team", Secrets: []server.Secret{server.NewSecret(secretMark + "team")}, Allow: allow}}}})
	assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{})))
	assert.Must(t, assert.Err(e.b.Rewind(t.Context(), "g", "normal", status.Position{Earliest: true})))
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
		w := e.asKey("team", c.method, c.path, c.body)
		assert.That(t, w.Code == c.status, "%s %s %s: %d %s, want %d", c.method, c.path, c.body, w.Code, w.Body, c.status)
	}
}

// Abandoned transactions are half messages of all topics: a key that may receive as any group, but
// not from any topic, can neither read nor move them.
func TestAbandonedTransactionsAreNoGroupsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(name, topics string) server.Key {
			return server.Key{Name: name, Secrets: []server.Secret{server.NewSecret(secretMark + name)}, Allow: []server.Rule{
				{Actions: []server.Action{"receive", "admin", "send"}, Topics: []string{topics}, Groups: []string{"*"}},
			}}
		}
		e := withTransactions(t, server.Options{Access: server.AccessConfig{Keys: []server.Key{key("orders", "orders*"), key("all", "*")}}})
		assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "tx", settings.Topic{Transaction: settings.Transaction{CheckMax: 1}})))
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
				if w := e.asKey(who, c.method, c.path, c.body); w.Code != status || c.method != "DELETE" && status == 200 && !strings.Contains(w.Body.String(), "half") {
					t.Errorf("%s %s by %s: %d %s, want %d", c.method, c.path, who, w.Code, w.Body, status)
				}
			}
		}
	})
}
