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
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
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
		key("producer", server.Rule{Actions: []server.Action{server.ActionSend}, Topics: []string{"norm*"}}),
		key("consumer", server.Rule{Actions: []server.Action{server.ActionReceive}, Topics: []string{"norm*"}, Groups: []string{"g"}}),
		key("monitor", server.Rule{Actions: []server.Action{server.ActionObserve}, Topics: all, Groups: all}),
		key("admin", server.Rule{Actions: []server.Action{server.ActionAdmin}, Topics: all, Groups: all}),
		key("root", server.Rule{Actions: []server.Action{server.ActionAdmin, server.ActionSend, server.ActionReceive}, Topics: all, Groups: all}),
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
		typ, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
		if err != nil {
			e.t.Fatal(err)
		}
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

// Every RPC has a row in the table, and rejects clients without credentials, with wrong ones, or
// with too few rights. Telemetry and NotifyClientTermination need credentials alone.
func TestEveryRPCIsGuarded(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	methods := rmqpb.File_tidegate_rmq_v2_service_proto.Services().Get(0).Methods()
	rows := map[string]bool{}
	for i := range methods.Len() {
		name := string(methods.Get(i).Name())
		rows[name] = true
		if auth.RPCs[name] == nil {
			t.Errorf("%s is not in rpcNeeds: add the permission that it needs", name)
		}
		at := time.Now().UTC().Format("20060102T150405Z")
		for who, ctx := range map[string]context.Context{
			"no key":       e.ctx(),
			"no client ID": t.Context(), // the check of the ID comes afterwards
			"wrong secret": as(t.Context(), "client", wire.HeaderDateTime, at, wire.HeaderAuthorization, signature("root", "wrong", at)),
			"two headers":  as(signed(t.Context(), "root"), "client", wire.HeaderAuthorization, "x"),
		} {
			st, err := e.call(ctx, name)
			if err != nil {
				t.Errorf("%s by %s: %v", name, who, err)
				continue
			}
			refused(named{t, name + " by " + who}, st, tidegate.CodeUnauthorized)
		}
		if name == "NotifyClientTermination" || name == "Telemetry" || name == "Heartbeat" {
			continue // empty, these three name no topic and no group
		}
		st, err := e.call(signed(t.Context(), "nothing"), name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		refused(named{t, name}, st, tidegate.CodeForbidden, "nothing is not permitted to")
	}
	for name := range auth.RPCs {
		if !rows[name] {
			t.Errorf("rpcNeeds has %s, which is no RPC", name)
		}
	}
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
		if !known {
			t.Errorf("%q is not in httpNeeds: add the permission that it needs", pattern)
		}
		method, path := rt.Method, strings.NewReplacer("{topic}", "normal", "{group}", "g").Replace(rt.Path)
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if open := w.Code != http.StatusUnauthorized; open != (needs == nil) {
			t.Errorf("%s without credentials: %d", pattern, w.Code)
		}
		if needs != nil && rt.Op != "live" { // its stream has no end; routeTable has the route
			r := httptest.NewRequest(method, "https://h"+path, nil)
			r.SetBasicAuth("nothing", secretMark+"nothing")
			w = httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			if refused := w.Code == http.StatusForbidden; refused == slices.Contains(forEveryKey, pattern) {
				t.Errorf("%s by a key without rights: %d %s", pattern, w.Code, w.Body)
			}
		}
	}
	for pattern := range auth.Routes {
		if !routes[pattern] {
			t.Errorf("httpNeeds has %q, which is no route", pattern)
		}
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: someAccess()})
		producer, consumer, root := signed(t.Context(), "producer"), signed(t.Context(), "consumer"), signed(t.Context(), "root")
		send := func(ctx context.Context, topics ...string) *rmqpb.Status {
			q := &rmqpb.SendMessageRequest{}
			for i, topic := range topics {
				q.Messages = append(q.Messages, msg(topic, fmt.Sprint(topic, i)))
			}
			r, err := e.SendMessage(ctx, q)
			if err != nil {
				t.Fatal(err)
			}
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
		if _, err := e.b.Group("other"); err == nil {
			t.Error("a rejected receive created the group")
		}
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
				if err != nil {
					t.Fatal(err)
				}
				refused(named{t, name + ", change"}, r.GetStatus(), c.code)
				f, err := e.ForwardMessageToDeadLetterQueue(as(consumer, "client", wire.HeaderReason, "x"), &rmqpb.ForwardMessageToDeadLetterQueueRequest{
					Topic: res(c.topic), Group: res(c.group), ReceiptHandle: c.handle,
				})
				if err != nil {
					t.Fatal(err)
				}
				refused(named{t, name + ", dead letter"}, f.GetStatus(), c.code)
			}
			r, err := e.AckMessage(consumer, &rmqpb.AckMessageRequest{
				Topic: res(c.topic), Group: res(c.group), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: c.handle}},
			})
			if err != nil {
				t.Fatal(err)
			}
			refused(named{t, name + ", ack"}, r.GetStatus(), c.code)
		}
		r, err := e.QueryRoute(consumer, &rmqpb.QueryRouteRequest{Topic: res("normal")})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), protocol.CodeOK)
	})
}

// A rejected Telemetry stream gets a command with the status, and ends. It makes no group.
func TestTelemetryRights(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	subscribe := func(group string) *rmqpb.TelemetryCommand {
		return &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: &rmqpb.Settings{PubSub: &rmqpb.Settings_Subscription{
			Subscription: &rmqpb.Subscription{Group: res(group), Subscriptions: []*rmqpb.SubscriptionEntry{{Topic: res("normal")}}},
		}}}}
	}
	publish := func(topic string) *rmqpb.TelemetryCommand {
		return &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: &rmqpb.Settings{PubSub: &rmqpb.Settings_Publishing{
			Publishing: &rmqpb.Publishing{Topics: []*rmqpb.Resource{res(topic)}},
		}}}}
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		say  *rmqpb.TelemetryCommand
		code tidegate.Code
		ends codes.Code
	}{
		"a consumer":     {signed(t.Context(), "consumer"), subscribe("g"), protocol.CodeOK, codes.OK},
		"another group":  {signed(t.Context(), "consumer"), subscribe("h"), tidegate.CodeForbidden, codes.PermissionDenied},
		"not a consumer": {signed(t.Context(), "producer"), subscribe("g"), tidegate.CodeForbidden, codes.PermissionDenied},
		"a producer":     {signed(t.Context(), "producer"), publish("normal"), protocol.CodeOK, codes.OK},
		"another topic":  {signed(t.Context(), "producer"), publish("fifo"), tidegate.CodeForbidden, codes.PermissionDenied},
		"no key":         {e.ctx(), publish("normal"), tidegate.CodeUnauthorized, codes.Unauthenticated},
	} {
		s, err := e.Telemetry(c.ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Send(c.say) // the rejection may have come before
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
				key := map[bool]string{true: "consumer", false: "producer"}[name == "another group"]
				r, err := e.QueryRoute(signedIn(t.Context(), key, language), &rmqpb.QueryRouteRequest{Topic: res("normal"), Endpoints: &rmqpb.Endpoints{}})
				if err != nil {
					t.Fatal(err)
				}
				if refused(named{t, name + " " + language}, r.GetStatus(), code); code != protocol.CodeOK && r.GetStatus().GetMessage() != answer.GetStatus().GetMessage() {
					t.Errorf("%s: the route has the status %v, want that of the stream", name, r.GetStatus())
				}
			}
		} else if err := s.CloseSend(); err != nil {
			t.Error(err)
		}
	}
	if _, err := e.b.Group("h"); err == nil {
		t.Error("a rejected consumer created its group")
	}
}

// A client can end another one only if both have one key.
func TestClientsAreOfTheirKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: someAccess()})
		parked := make(chan *rmqpb.Status, 1)
		go func() {
			st, _ := e.receive(signed(t.Context(), "consumer"), receiveRequest("normal"))
			parked <- st
		}()
		synctest.Wait()
		for _, key := range []string{"producer", "consumer"} {
			if _, err := e.NotifyClientTermination(signed(t.Context(), key), &rmqpb.NotifyClientTerminationRequest{}); err != nil {
				t.Fatal(err)
			}
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
			r, err := e.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetStatus()
		}
		refused(t, try(), protocol.CodeOK)
		time.Sleep(server.DefaultMaxClockSkew + time.Second)
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
			if err := e.s.SetAccess(step.c); err != nil {
				t.Fatal(err)
			}
			refused(t, try(), step.code)
		}
		if err := e.s.SetAccess(server.AccessConfig{Keys: []server.Key{{Name: secretMark, Secrets: []server.Secret{server.NewSecret(secretMark)}, Allow: []server.Rule{{}}}}}); err == nil {
			t.Error("a rule without actions is accepted")
		}
		refused(t, try(), protocol.CodeOK) // as before
	})
}

// The cost of access control for a request.
func BenchmarkAccess(b *testing.B) {
	for name, c := range map[string]server.AccessConfig{"off": {}, "on": someAccess()} {
		b.Run(name, func(b *testing.B) {
			e := start(b, server.Options{Access: c})
			q := &rmqpb.QueryRouteRequest{Topic: res("normal")}
			for b.Loop() {
				if r, err := e.QueryRoute(signed(b.Context(), "producer"), q); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
					b.Fatal(r, err)
				}
			}
		})
	}
}

// A consumer's settings may name only topics that it may receive from. Its group alone is not
// sufficient.
func TestSubscriptionsNeedRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: someAccess()})
		for topic, want := range map[string]tidegate.Code{"normal": protocol.CodeOK, "fifo": tidegate.CodeForbidden} {
			ctx, cancel := context.WithCancel(signed(t.Context(), "consumer"))
			r, err := e.announce(ctx, subscriber(topic))
			cancel()
			if err != nil || tidegate.Code(r.GetStatus().GetCode()) != want {
				t.Errorf("a subscription of %s: %v, %v; want code %d", topic, r.GetStatus(), err, want)
			}
		}
	})
}
