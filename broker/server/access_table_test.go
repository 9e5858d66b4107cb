package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// The tables of this file list the rights by hand, and do not read the tables that decide. The keys
// are these, each with a letter: the producer of norm*; the consumer of norm* as g; the monitor,
// which may observe everything; the admin of everything; and the owner, an admin of norm* and g
// alone. n is a request without credentials.
var tableKeys = map[rune]string{'p': "producer", 'c': "consumer", 'm': "monitor", 'a': "admin", 'o': "owner", 'n': ""}

const (
	everybody  = "pcmaon"
	everyKey   = "pcmao"
	theServers = "ma" // observes the whole broker
)

// routeTable has two lists of keys for each route: those that may use it on topic normal and group
// g, and those that may use it on topic fifo and group other. Only the keys for everything name the
// latter two.
var routeTable = []struct{ route, own, foreign string }{
	{"POST /v1/topics/{topic}/messages", "p", ""},
	{"POST /v1/topics/{topic}/recall", "p", ""},
	{"POST /v1/groups/{group}/topics/{topic}/receive", "c", ""},
	{"POST /v1/groups/{group}/acknowledge", "c", ""},
	{"POST /v1/groups/{group}/change-invisible-duration", "c", ""},
	{"POST /v1/groups/{group}/snooze", "c", ""},
	{"POST /v1/groups/{group}/retry", "c", ""},
	{"POST /v1/groups/{group}/dead-letter", "c", ""},
	{"POST /v1/groups/{group}/reconsume-later", "c", ""},
	{"POST /v1/groups/{group}/negative-acknowledge", "c", ""},

	{"GET /v1/topics", theServers, theServers},
	{"GET /v1/topics?limit=10", everyKey, everyKey}, // only the topics that the key may observe
	{"GET /v1/groups?limit=10", everyKey, everyKey},
	{"GET /v1/topics/{topic}", "mao", theServers},
	{"GET /v1/topics/{topic}/messages", "cmao", theServers},
	{"GET /v1/topics/{topic}/messages/{id}", "cmao", theServers},
	{"GET /v1/topics/{topic}/messages/{id}?group=g", "cmao", theServers},
	{"GET /v1/topics/{topic}/messages/{id}?group=other", "ma", theServers},
	{"GET /v1/topics/{topic}/messages/{id}?contents=true", "c", ""}, // as a receive
	{"GET /v1/topics/{topic}/messages/{id}?text=true", "c", ""},
	{"GET /v1/topics/{topic}/messages?contents=true", "c", ""},
	{"GET /v1/topics/{topic}/messages?text=true", "c", ""},
	{"GET /v1/topics/{topic}/messages?key=k", "c", ""},
	{"GET /v1/topics/{topic}/messages?property=a=b", "c", ""},
	{"GET /v1/topics/{topic}/messages?contains=x", "c", ""},
	{"PUT /v1/topics/{topic}", "ao", "a"},
	{"DELETE /v1/topics/{topic}", "ao", "a"},
	{"POST /v1/topics/{topic}/purge", "ao", "a"},
	{"GET /v1/topics/{topic}/address-settings", "mao", theServers},
	{"GET /v1/groups", theServers, theServers},
	{"GET /v1/groups/{group}", "mao", theServers},
	{"PUT /v1/groups/{group}", "ao", "a"},
	{"PATCH /v1/groups/{group}", "ao", "a"},
	{"DELETE /v1/groups/{group}", "ao", "a"},
	{"POST /v1/groups/{group}/rewind", "ao", "a"},
	{"GET /v1/groups/{group}/parked", "mao", theServers},
	{"POST /v1/groups/{group}/parked/redrive", "ao", "a"},
	{"GET /v1/groups/{group}/dead-letters", "cmao", theServers},
	{"GET /v1/groups/{group}/dead-letters?bodies=true", "c", ""}, // as a receive
	{"GET /v1/groups/{group}/dead-letters?text=true", "c", ""},
	{"GET /v1/topics/{topic}/queues", "mao", theServers},
	{"GET /v1/groups/{group}/topics/{topic}/queues", "cmao", theServers},
	{"POST /v1/topics/{topic}/purge?dry_run=true", "ao", "a"},
	{"GET /v1/groups/{group}/topics/{topic}/leases", "cmao", theServers},
	{"GET /v1/groups/{group}/topics/{topic}/schedule", "cmao", theServers},
	{"GET /v1/groups/{group}/failures", "mao", theServers},
	{"GET /v1/groups/{group}/dead-letters/classes", "cmao", theServers},
	{"DELETE /v1/groups/{group}/dead-letters", "ao", "a"},
	{"POST /v1/groups/{group}/dead-letters/redrive", "a", "a"}, // it sends to all topics of their origin
	{"GET /v1/throttle", theServers, theServers},
	{"PUT /v1/throttle", "a", "a"},
	{"PATCH /v1/throttle", "a", "a"},
	{"POST /v1/snapshot", "a", "a"},
	{"GET /v1/address-settings", theServers, theServers},
	{"GET /v1/address-settings/{match}", theServers, theServers},
	{"PUT /v1/address-settings/{match}", "a", "a"},
	{"DELETE /v1/address-settings/{match}", "a", "a"},

	{"POST /v1/session", everyKey, everyKey},
	{"GET /v1/session", everyKey, everyKey},
	{"DELETE /v1/session", everyKey, everyKey},
	{"GET /v1/topics?view=summary", everyKey, everyKey}, // only the names that the key may observe
	{"GET /v1/groups?view=summary", everyKey, everyKey},
	{"GET /v1/live", everyKey, everyKey},
	{"GET /v1/history", everyKey, everyKey},
	{"GET /v1/clients", everyKey, everyKey}, // only the clients that the key may observe
	{"GET /v1/audit", "a", "a"},
	{"GET /v1/overview", theServers, theServers},
	{"GET /metrics", theServers, theServers},
	{"GET /healthz", everybody, everybody},
	{"GET /readyz", everybody, everybody},
	{"GET /v1/openapi.yaml", everybody, everybody},
}

// rpcTable is the same for RPCs; call makes one about a topic and a group.
var rpcTable = []struct {
	name, own, foreign string
	call               func(ctx context.Context, e *env, topic, group string) (statused, error)
}{
	{"QueryRoute", everyKey, theServers, func(ctx context.Context, e *env, topic, _ string) (statused, error) {
		return e.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res(topic)})
	}},
	{"QueryAssignment", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return e.QueryAssignment(ctx, &rmqpb.QueryAssignmentRequest{Topic: res(topic), Group: res(group)})
	}},
	{"Heartbeat", "c", "", func(ctx context.Context, e *env, _, group string) (statused, error) {
		return e.Heartbeat(ctx, &rmqpb.HeartbeatRequest{Group: res(group)})
	}},
	{"Heartbeat", everyKey, everyKey, func(ctx context.Context, e *env, _, _ string) (statused, error) { // a producer's
		return e.Heartbeat(ctx, &rmqpb.HeartbeatRequest{})
	}},
	{"NotifyClientTermination", everyKey, everyKey, func(ctx context.Context, e *env, _, group string) (statused, error) {
		return e.NotifyClientTermination(ctx, &rmqpb.NotifyClientTerminationRequest{Group: res(group)})
	}},
	{"SendMessage", "p", "", func(ctx context.Context, e *env, topic, _ string) (statused, error) {
		return e.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg(topic, "1")}})
	}},
	{"RecallMessage", "p", "", func(ctx context.Context, e *env, topic, _ string) (statused, error) {
		return e.RecallMessage(ctx, &rmqpb.RecallMessageRequest{Topic: res(topic), RecallHandle: "x"})
	}},
	{"EndTransaction", "p", "", func(ctx context.Context, e *env, topic, _ string) (statused, error) {
		return e.EndTransaction(ctx, &rmqpb.EndTransactionRequest{Topic: res(topic), MessageId: "1", TransactionId: "x"})
	}},
	{"ReceiveMessage", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return firstFrame(e.ReceiveMessage(ctx, receiveRequest(topic, func(r *rmqpb.ReceiveMessageRequest) { r.Group.Name = group })))
	}},
	{"AckMessage", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return e.AckMessage(ctx, &rmqpb.AckMessageRequest{Topic: res(topic), Group: res(group), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: "x"}}})
	}},
	{"ChangeInvisibleDuration", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return e.ChangeInvisibleDuration(ctx, &rmqpb.ChangeInvisibleDurationRequest{
			Topic: res(topic), Group: res(group), ReceiptHandle: "x", InvisibleDuration: durationpb.New(0)})
	}},
	{"ForwardMessageToDeadLetterQueue", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return e.ForwardMessageToDeadLetterQueue(ctx, &rmqpb.ForwardMessageToDeadLetterQueueRequest{Topic: res(topic), Group: res(group), ReceiptHandle: "x"})
	}},
	{"PullMessage", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return firstFrame(e.PullMessage(ctx, &rmqpb.PullMessageRequest{MessageQueue: &rmqpb.MessageQueue{Topic: res(topic)}, Group: res(group)}))
	}},
	{"UpdateOffset", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return e.UpdateOffset(ctx, &rmqpb.UpdateOffsetRequest{MessageQueue: &rmqpb.MessageQueue{Topic: res(topic)}, Group: res(group)})
	}},
	{"GetOffset", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return e.GetOffset(ctx, &rmqpb.GetOffsetRequest{MessageQueue: &rmqpb.MessageQueue{Topic: res(topic)}, Group: res(group)})
	}},
	{"QueryOffset", everyKey, theServers, func(ctx context.Context, e *env, topic, _ string) (statused, error) {
		return e.QueryOffset(ctx, &rmqpb.QueryOffsetRequest{MessageQueue: &rmqpb.MessageQueue{Topic: res(topic)}})
	}},
	{"SyncLiteSubscription", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		return e.SyncLiteSubscription(ctx, &rmqpb.SyncLiteSubscriptionRequest{Topic: res(topic), Group: res(group)})
	}},
	{"Telemetry", "p", "", func(ctx context.Context, e *env, topic, _ string) (statused, error) {
		return e.announce(ctx, producer(topic))
	}},
	{"Telemetry", "c", "", func(ctx context.Context, e *env, topic, group string) (statused, error) {
		in := subscriber(topic)
		in.GetSubscription().Group = res(group)
		return e.announce(ctx, in)
	}},
}

type statused interface{ GetStatus() *rmqpb.Status }

// firstFrame returns the first frame of a stream, which has its status.
func firstFrame[T statused](stream interface{ Recv() (T, error) }, err error) (statused, error) {
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// announce opens a Telemetry stream with in, and returns the response to it.
func (e *env) announce(ctx context.Context, in *rmqpb.Settings) (statused, error) {
	s, err := e.Telemetry(ctx)
	if err != nil {
		return nil, err
	}
	_ = s.Send(command(in)) // the rejection may have come before
	return s.Recv()
}

func tableAccess() server.AccessConfig {
	c := someAccess()
	c.Keys = append(c.Keys, server.Key{Name: "owner", Secrets: []server.Secret{server.NewSecret(secretMark + "owner")},
		Allow: []server.Rule{{Actions: []server.Action{server.ActionAdmin}, Topics: []string{"norm*"}, Groups: []string{"g"}}}})
	return c
}

// wanted returns whether a request is to be allowed, and else with which code it is rejected.
func wanted(allowed string, key rune) tidegate.Code {
	switch {
	case strings.ContainsRune(allowed, key):
		return protocol.CodeOK
	case key == 'n':
		return tidegate.CodeUnauthorized
	}
	return tidegate.CodeForbidden
}

// bodyOf returns the body of a request that names the topic if its path does not.
func bodyOf(route string, i int) io.Reader {
	if route == "POST /v1/groups/{group}/rewind" {
		return strings.NewReader(fmt.Sprintf(`{"topic": %q}`, []string{"normal", "fifo"}[i]))
	}
	return nil
}

func TestPermissionsOfEachRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
		rows := map[string]bool{}
		for _, row := range routeTable {
			rows[row.route] = true
			method, pattern, _ := strings.Cut(row.route, " ")
			for i, path := range []string{
				strings.NewReplacer("{topic}", "normal", "{group}", "g", "{match}", "normal", "{id}", "x").Replace(pattern),
				strings.NewReplacer("{topic}", "fifo", "{group}", "other", "{match}", "fifo", "{id}", "x").Replace(pattern),
			} {
				for letter, key := range tableKeys {
					want := wanted([]string{row.own, row.foreign}[i], letter)
					ctx, cancel := context.WithTimeout(t.Context(), time.Second) // of a stream
					r := httptest.NewRequestWithContext(ctx, method, "https://h"+path, bodyOf(row.route, i))
					if key != "" {
						r.SetBasicAuth(key, secretMark+key)
					}
					w := httptest.NewRecorder()
					e.s.Handler().ServeHTTP(w, r)
					cancel()
					got := tidegate.Code(protocol.CodeOK) // or any error of an allowed request
					switch w.Code {
					case http.StatusForbidden:
						got = tidegate.CodeForbidden
					case http.StatusUnauthorized:
						got = tidegate.CodeUnauthorized
					}
					if got != want {
						t.Errorf("%s %s by %q: %d %s; want code %d", method, path, key, w.Code, w.Body, want)
					}
				}
			}
		}
		for _, rt := range e.s.Routes() {
			if !rows[rt.Method+" "+rt.Path] {
				t.Errorf("%s %s is not in routeTable: add the permission that it needs", rt.Method, rt.Path)
			}
		}
	})
}

func TestPermissionsOfEachRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
		rows := map[string]bool{}
		for _, row := range rpcTable {
			rows[row.name] = true
			for i, on := range [][2]string{{"normal", "g"}, {"fifo", "other"}} {
				for letter, key := range tableKeys {
					ctx, cancel := context.WithCancel(e.ctx())
					if key != "" {
						ctx = signed(t.Context(), key)
					}
					want := wanted([]string{row.own, row.foreign}[i], letter)
					response, err := row.call(ctx, e, on[0], on[1])
					cancel()
					name := fmt.Sprintf("%s of %s by %q", row.name, on, key)
					if err != nil {
						t.Errorf("%s: %v", name, err)
						continue
					}
					got := tidegate.Code(response.GetStatus().GetCode())
					if got != tidegate.CodeForbidden && got != tidegate.CodeUnauthorized {
						got = protocol.CodeOK // or any error of an allowed request
					}
					if got != want {
						t.Errorf("%s: %v; want code %d", name, response.GetStatus(), want)
					}
				}
			}
		}
		methods := rmqpb.File_tidegate_rmq_v2_service_proto.Services().Get(0).Methods()
		for i := range methods.Len() {
			if name := string(methods.Get(i).Name()); !rows[name] {
				t.Errorf("%s is not in rpcTable: add the permission that it needs", name)
			}
		}
	})
}

// A response has only names and contents that its key may see, on every route with GET, and with
// each view of a list. The topic normal and the group g are the owner's, and hidden-topic and
// hidden-group belong to others. Two names reach the owner, each on some routes: near-group
// consumes the topic normal, and a client of g subscribes to near-topic. Bodies, keys and
// properties begin with "content-", and only keys that may receive see them.
func TestResponsesHaveOnlyPermittedNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := tableAccess()
		access.Keys = append(access.Keys, server.Key{Name: "all", Secrets: []server.Secret{server.NewSecret(secretMark + "all")},
			Allow: []server.Rule{{Actions: []server.Action{server.ActionSend, server.ActionReceive}, Topics: []string{"*"}, Groups: []string{"*"}}}})
		e := start(t, server.Options{Access: access})
		ctx := t.Context()
		for _, topic := range []string{"hidden-topic", "near-topic"} {
			if _, err := e.b.PutTopic(ctx, topic, settings.Topic{Queues: 2}); err != nil {
				t.Fatal(err)
			}
		}
		groups := map[string][]string{"normal": {"g", "near-group"}, "hidden-topic": {"hidden-group"}}
		for _, group := range []string{"g", "near-group", "hidden-group"} {
			if _, err := e.b.PutGroup(ctx, group, settings.Group{}); err != nil {
				t.Fatal(err)
			}
		}
		for _, topic := range []string{"normal", "hidden-topic"} {
			for i := range 4 {
				m := &tidegate.Message{ID: fmt.Sprint("m", i), Topic: topic, Body: []byte("content-body"), Keys: []string{"content-key"}, Properties: map[string]string{"p": "content-property"}}
				if r := e.b.Send(ctx, []*tidegate.Message{m}); r[0].Err != nil {
					t.Fatal(r[0].Err)
				}
			}
			for _, group := range groups[topic] {
				ds, err := e.b.Receive(ctx, transport.ReceiveRequest{Group: group, Topic: topic, Queue: -1, Max: 3, InvisibleDuration: time.Hour})
				if err != nil || len(ds) != 3 {
					t.Fatal(ds, err)
				}
				if _, err := e.b.Settle(ctx, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "why"}); err != nil {
					t.Fatal(err)
				}
				if _, err := e.b.Settle(ctx, ds[1], transport.Verdict{Kind: transport.Retry, Delay: time.Hour, Reason: "why"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for client, in := range map[string]*rmqpb.Settings{"hidden-sender": producer("hidden-topic"), "hidden-consumer": subscriber("hidden-topic"), "both": producer("normal", "hidden-topic"), "own": subscriber("normal", "near-topic")} {
			if sub := in.GetSubscription(); sub != nil {
				sub.Group = res("hidden-group")
				if client == "own" {
					sub.Group = res("g")
				}
				for _, s := range sub.GetSubscriptions() {
					s.Expression = &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: map[string]string{"normal": "own-tag", "hidden-topic": "hidden-tag", "near-topic": "hidden-tag"}[s.GetTopic().GetName()]}
				}
			}
			at := time.Now().UTC().Format("20060102T150405Z")
			stream, err := e.Telemetry(as(ctx, client, wire.HeaderDateTime, at, wire.HeaderAuthorization, signature("all", secretMark+"all", at)))
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(command(in)); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second) // the survey of the overview is of the present
		get := func(key, path string) (int, string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // of a stream
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, "GET", "https://h"+path, nil)
			r.SetBasicAuth(key, secretMark+key)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			return w.Code, w.Body.String()
		}
		paths := []string{
			"/v1/history?topics=normal,hidden-topic&groups=g,hidden-group,near-group", "/v1/live?topics=normal,hidden-topic&groups=g,hidden-group,near-group,near-group/normal", "/v1/clients?limit=100", "/v1/clients?topic=normal", "/v1/clients?match=*",
			"/v1/topics?view=summary&sort=-backlog", "/v1/groups?view=summary&topic=normal", "/v1/topics/normal/messages?order=newest", "/v1/topics/normal/messages/m0", "/v1/topics/normal/messages/m1",
		}
		for _, row := range routeTable {
			if path, ok := strings.CutPrefix(row.route, "GET "); ok {
				paths = append(paths, strings.NewReplacer("{topic}", "normal", "{group}", "g", "{match}", "normal", "{id}", "m0").Replace(path))
			}
		}
		near := []string{"/v1/topics/normal near-group", "/v1/topics?limit=10 near-group"} // the route with the name
		seen := map[string]bool{}
		for _, path := range paths {
			for key, marks := range map[string][]string{
				"producer": {"hidden-", "near-", "content-", "bufconn"},
				"consumer": {"hidden-", "near-", "bufconn"},
				"owner":    {"hidden-", "near-group", "near-topic", "content-", "bufconn"},
				"monitor":  {"content-"},
				"admin":    {"content-"},
			} {
				code, text := get(key, path)
				for _, mark := range marks {
					if slices.Contains(near, path+" "+mark) || mark == "near-topic" && strings.HasPrefix(path, "/v1/clients") {
						continue
					}
					if i := strings.Index(text, mark); code == http.StatusOK && i >= 0 {
						t.Errorf("GET %s by %s has %q: …%s…", path, key, mark, text[max(0, i-200):min(len(text), i+60)])
					}
				}
				for _, mark := range []string{"hidden-topic", "hidden-group", "hidden-tag", "hidden-sender", "content-key", "bufconn"} {
					seen[mark] = seen[mark] || code == http.StatusOK && strings.Contains(text, mark)
				}
			}
		}
		for _, mark := range []string{"hidden-topic", "hidden-group", "hidden-tag", "hidden-sender", "content-key", "bufconn"} {
			if !seen[mark] {
				t.Errorf("no response to any key has %q: this test sees nothing", mark)
			}
		}
	})
}
