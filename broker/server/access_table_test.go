package server_test

import (
	"bufio"
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

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/assert"
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
	{"PUT /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}", "c", ""},
	{"PATCH /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}", "c", ""},
	{"DELETE /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}", "c", ""},
	{"GET /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}/ended", "c", ""},
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
	{"GET /v1/topics/{topic}/lite-topics", "mao", theServers},
	{"DELETE /v1/topics/{topic}/lite-topics/{lite_topic}", "ao", "a"},
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
		Allow: []server.Rule{{Actions: []server.Action{"admin"}, Topics: []string{"norm*"}, Groups: []string{"g"}}}})
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
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
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
					w := e.serve(r)
					cancel()
					got := tidegate.Code(protocol.CodeOK) // or any error of an allowed request
					switch w.Code {
					case http.StatusForbidden:
						got = tidegate.CodeForbidden
					case http.StatusUnauthorized:
						got = tidegate.CodeUnauthorized
					}
					assert.That(t, got == want, "%s %s by %q: %d %s; want code %d", method, path, key, w.Code, w.Body, want)
				}
			}
		}
		for _, rt := range e.s.Routes() {
			assert.That(t, rows[rt.Method+" "+rt.Path], "%s %s is not in routeTable: add the permission that it needs", rt.Method, rt.Path)
		}
	})
}

func TestPermissionsOfEachRPC(t *testing.T) {
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
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
			Allow: []server.Rule{{Actions: []server.Action{"send", "receive"}, Topics: []string{"*"}, Groups: []string{"*"}}}})
		e := start(t, server.Options{Access: access})
		ctx := t.Context()
		for _, topic := range []string{"hidden-topic", "near-topic"} {
			assert.Must(t, assert.Err(e.b.PutTopic(ctx, topic, settings.Topic{Queues: 2})))
		}
		groups := map[string][]string{"normal": {"g", "near-group"}, "hidden-topic": {"hidden-group"}}
		for _, group := range []string{"g", "near-group", "hidden-group"} {
			assert.Must(t, assert.Err(e.b.PutGroup(ctx, group, settings.Group{})))
		}
		for _, topic := range []string{"normal", "hidden-topic"} {
			for i := range 4 {
				m := &tidegate.Message{ID: fmt.Sprint("m", i), Topic: topic, Body: []byte("content-body"), Keys: []string{"content-key"}, Properties: map[string]string{"p": "content-property"}}
				assert.Must(t, e.b.Send(ctx, []*tidegate.Message{m})[0].Err)
			}
			for _, group := range groups[topic] {
				ds := e.lease(3, transport.ReceiveRequest{Group: group, Topic: topic, Queue: -1, Max: 3, InvisibleDuration: time.Hour})
				assert.Must(t, assert.Err(e.b.Settle(ctx, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "why"})))
				assert.Must(t, assert.Err(e.b.Settle(ctx, ds[1], transport.Verdict{Kind: transport.Retry, Delay: time.Hour, Reason: "why"})))
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
			stream := assert.Value(e.Telemetry(as(ctx, client, wire.HeaderDateTime, at, wire.HeaderAuthorization, signature("all", secretMark+"all", at))))(t)
			assert.Must(t, stream.Send(command(in)))
			assert.Must(t, assert.Err(stream.Recv()))
		}
		time.Sleep(2 * time.Second) // the survey of the overview is of the present
		get := func(key, path string) (int, string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // of a stream
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, "GET", "https://h"+path, nil)
			r.SetBasicAuth(key, secretMark+key)
			w := e.serve(r)
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
			assert.That(t, seen[mark], "no response to any key has %q: this test sees nothing", mark)
		}
	})
}

// teams are two keys that may do everything with the topics of their patterns.
func teams(topics map[string]string) (c server.AccessConfig) {
	for name, pattern := range topics {
		c.Keys = append(c.Keys, server.Key{Name: name, Secrets: []server.Secret{server.NewSecret(secretMark + name)}, Allow: []server.Rule{
			{Actions: []server.Action{"send", "receive"}, Topics: []string{pattern}, Groups: []string{"g"}},
		}})
	}
	return c
}

// Checks, which have whole bodies, go to clients that may still send to the topic. The stream of a
// client ends when its key is removed or loses the topics.
func TestTelemetryOfARemovedKey(t *testing.T) {
	for name, c := range map[string]struct {
		after map[string]string
		code  tidegate.Code // of the end of the stream
		ends  codes.Code
	}{
		"the key is gone":               {map[string]string{"new": "*"}, tidegate.CodeUnauthorized, codes.Unauthenticated},
		"it may not send to this topic": {map[string]string{"new": "*", "old": "normal"}, tidegate.CodeForbidden, codes.PermissionDenied},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := withTransactions(t, server.Options{Access: teams(map[string]string{"old": "*", "new": "*"})})
			old, _ := e.telemetry(signed(t.Context(), "old"), producer("tx"))
			current, _ := e.telemetry(signed(t.Context(), "new"), producer("tx"))
			assert.Must(t, e.s.SetAccess(teams(c.after)))
			if n := len(e.s.Parts().Sessions.Publishing("tx")); n != 1 { // at once
				t.Errorf("%s: %d streams are asked, want 1", name, n)
			}
			half := msg("tx", "m", sys(func(p *rmqpb.SystemProperties) { p.MessageType = rmqpb.MessageType_TRANSACTION }))
			r := assert.Value(e.SendMessage(signed(t.Context(), "new"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{half}}))(t)
			refused(t, r.GetStatus(), protocol.CodeOK)
			for range 3 {
				if got := e.check(current).GetMessage().GetSystemProperties().GetMessageId(); got != "m" {
					t.Errorf("%s: checked %q", name, got)
				}
			}
			cmd := assert.Value(old.Recv())(t)
			refused(named{t, name}, cmd.GetStatus(), c.code)
			ended(named{t, name}, old, c.ends, cmd.GetStatus())
		})
	}
}

// A stream belongs to the key that opened it: settings that arrive after the end of its signature's
// validity are accepted.
func TestTelemetryOutlivesItsSignature(t *testing.T) {
	withServer(t, server.Options{Access: teams(map[string]string{"old": "*"})}, func(t *testing.T, e *env) {
		st, _ := e.telemetry(signed(t.Context(), "old"), producer("normal"))
		time.Sleep(2 * access.DefaultMaxClockSkew)
		for _, access := range []server.AccessConfig{teams(map[string]string{"old": "norm*"}), teams(map[string]string{"old": "*", "new": "*"})} {
			assert.Must(t, e.s.SetAccess(access))
			synctest.Wait()
			assert.Must(t, st.Send(command(producer("normal"))))
			e.settings(st)
		}
		// Without keys the client has another ID: it comes again with that.
		assert.Must(t, e.s.SetAccess(server.AccessConfig{}))
		if cmd, err := st.Recv(); err != io.EOF {
			t.Errorf("%v, %v", cmd, err)
		}
	})
}

// A receive that waits takes nothing for a key that is gone meanwhile.
func TestWaitingReceivesAreAuthorizedAgain(t *testing.T) {
	withServer(t, server.Options{Access: teams(map[string]string{"old": "*", "new": "*"})}, func(t *testing.T, e *env) {
		answers := make(chan *rmqpb.Status, 1)
		go func() {
			st, _ := e.receive(signed(t.Context(), "old"), receiveRequest("normal"))
			answers <- st
		}()
		synctest.Wait()
		assert.Must(t, e.s.SetAccess(teams(map[string]string{"new": "*"})))
		began := time.Now()
		refused(t, <-answers, protocol.CodeMessageNotFound)
		assert.Equal(t, "it waited for another", time.Since(began), 0)
	})
}

// Streams over HTTP end with their key and with its rights.
func TestHTTPStreamsOfARemovedKey(t *testing.T) {
	for name, c := range map[string]struct {
		after  map[string]string
		status int // 0: it continues
	}{
		"the key is gone":          {map[string]string{"new": "*"}, 401},
		"the topic is not its own": {map[string]string{"old": "fifo"}, 403},
		"nothing changes for it":   {map[string]string{"old": "normal", "new": "fifo"}, 0},
	} {
		withWeb(t, server.Options{Access: teams(map[string]string{"old": "*", "new": "*"})}, func(t *testing.T, x *webEnv) {
			at := time.Now().UTC().Format("20060102T150405Z")
			header := []string{"X-Mq-Date-Time", at, "Authorization", signature("old", secretMark+"old", at)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in := x.sendStream(ctx, "normal", header...)
			out := x.deliveryStream(ctx, "normal", `{}`, header...)
			defer out.Body.Close()
			lines := bufio.NewScanner(out.Body)
			next := func() string {
				t.Helper()
				for lines.Scan() {
					if lines.Text() != "" {
						return lines.Text()
					}
				}
				return fmt.Sprint("end ", lines.Err())
			}
			in.write(`{"id":"1","body":"eA=="}` + "\n")
			if r := in.next(); r.Error != nil {
				t.Fatalf("%+v", r)
			}
			if got := next(); !strings.Contains(got, `"id":"1"`) {
				t.Fatal(got)
			}
			assert.Must(t, x.s.SetAccess(teams(c.after)))
			if c.status != 0 {
				want := fmt.Sprintf(`"status":%d`, c.status)
				if got := next(); !strings.Contains(got, want) { // at once
					t.Errorf("%s: received %s, want %s", name, got, want)
				}
				if got := next(); got != "end <nil>" {
					t.Errorf("%s: received %s after the last line", name, got)
				}
			}
			in.write(`{"id":"2","body":"eA=="}` + "\n")
			switch r := in.next(); {
			case c.status == 0 && r.Error != nil, c.status != 0 && (r.Error == nil || r.Error.Status != c.status || r.Line != 0):
				t.Errorf("%s: the response is %+v", name, r)
			case c.status != 0:
				in.end()
			default:
				if got := next(); !strings.Contains(got, `"id":"2"`) {
					t.Errorf("%s: received %s", name, got)
				}
			}
			synctest.Wait()
			stored, err := x.b.Topic("normal")
			if want := map[bool]int64{true: 2, false: 1}[c.status == 0]; err != nil || stored.StoredMessages != want {
				t.Errorf("%s: %+v, %v; want %d messages", name, stored, err, want)
			}
		})
	}
}

// scrapedBy is scraped with the credentials of the key monitor.
func scrapedBy(t testing.TB, s *server.Server) (map[string]float64, string) {
	t.Helper()
	w := (&env{s: s}).asKey("monitor", "GET", "/metrics", "")
	assert.MustThat(t, w.Code == 200, "GET /metrics: %d %s", w.Code, w.Body)
	out := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		var v float64
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			fmt.Sscan(line[i+1:], &v)
			out[line[:i]] = v
		}
	}
	return out, w.Body.String()
}

// Rejections are logged with key, peer, operation and reason, a few of each kind.
func TestRejectionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const logged = 5 // of one reason in 10 s
		log, text := testLog()
		e := start(t, server.Options{Access: someAccess(), Logger: log})
		route := func(ctx context.Context) {
			assert.Must(t, assert.Err(e.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")})))
		}
		for range 100 {
			route(e.ctx())
		}
		route(signed(t.Context(), "nothing"))
		time.Sleep(10 * time.Second)
		route(e.ctx())
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		assert.MustThat(t, len(lines) == logged+2, "%d lines:\n%s", len(lines), text)
		for i, words := range map[int]string{
			0:          "operation=QueryRoute key=anonymous peer=bufconn reason=no_credentials not_logged=0",
			logged:     "operation=QueryRoute key=nothing reason=forbidden not_logged=0",
			logged + 1: "key=anonymous not_logged=95",
		} {
			for w := range strings.FieldsSeq(words) {
				if !strings.Contains(lines[i], " "+w) {
					t.Errorf("line %d does not contain %s: %s", i+1, w, lines[i])
				}
			}
		}
		if n, _ := scrapedBy(t, e.s); n[`tidegate_access_refusals_total{reason="no_credentials"}`] != 101 {
			t.Errorf("counted: %v", n)
		}
	})
}

// With any requests of clients, no secret is in a log, a response, an error or a metric, also if
// they send it in the wrong place.
func TestNoSecretIsDisclosed(t *testing.T) {
	log, text := testLog()
	e := start(t, server.Options{Access: someAccess(), Logger: log})
	var said strings.Builder
	at := time.Now().UTC().Format("20060102T150405Z")
	for _, authorization := range []string{
		signature("sesame-root", "root", at), "sesame-root", "Basic sesame-root", "Bearer sesame-root",
		"MQv2-HMAC-SHA1 Credential=sesame-root", "MQv2-HMAC-SHA1 Credential=root, SignedHeaders=sesame-root, Signature=sesame-root",
		signature("root", "sesame-root", "sesame-root"), signature("nothing", "sesame-nothing", at),
	} {
		for _, date := range []string{at, "sesame-root"} {
			for _, name := range []string{"QueryRoute", "SendMessage", "ReceiveMessage", "Telemetry"} {
				good := authorization == signature("nothing", "sesame-nothing", at) && date == at
				if good && name == "Telemetry" {
					continue // it waits for settings
				}
				st, err := e.call(as(t.Context(), "client", wire.HeaderDateTime, date, wire.HeaderAuthorization, authorization), name)
				assert.That(t, st.GetCode() != rmqpb.Code_OK || err != nil || good, "%s, %s: %s is allowed", authorization, date, name)
				fmt.Fprintln(&said, st, err)
			}
			r := httptest.NewRequest("GET", "/v1/topics", nil)
			r.Header.Set("Authorization", authorization)
			r.Header.Set("X-Mq-Date-Time", date)
			w := e.serve(r)
			fmt.Fprintln(&said, w.Code, w.Header(), w.Body)
		}
	}
	for _, k := range []string{"sesame-root", "root", "sesame-"} {
		r := httptest.NewRequest("GET", "https://h/v1/topics", nil)
		r.SetBasicAuth(k, "sesame-oh")
		w := e.serve(r)
		fmt.Fprintln(&said, w.Code, w.Header(), w.Body)
	}
	_, metrics := scrapedBy(t, e.s)
	policy, err := access.New(someAccess())
	fmt.Fprintf(&said, "%s%v %+v %#v %v", metrics, e.s.Parts().Options.Access, e.s.Parts().Options, policy, err)
	_, err = server.New(e.b, server.Options{Access: server.AccessConfig{Keys: append(someAccess().Keys, someAccess().Keys...)}})
	fmt.Fprintln(&said, err)
	for what, s := range map[string]string{"the log": text.String(), "an answer": said.String()} {
		assert.That(t, s != "" && !strings.Contains(s, secretMark), "%s has a secret:\n%s", what, s)
	}
}

// A Telemetry stream that was rejected is counted as that.
func TestRejectedTelemetryIsCounted(t *testing.T) {
	withServer(t, server.Options{Access: someAccess()}, func(t *testing.T, e *env) {
		for _, c := range []struct {
			ctx   context.Context
			topic string
		}{{e.ctx(), "normal"}, {signed(t.Context(), "producer"), "fifo"}, {signed(t.Context(), "producer"), "normal"}} {
			st := assert.Value(e.Telemetry(c.ctx))(t)
			_ = st.Send(command(producer(c.topic))) // the rejection may have come before
			assert.Must(t, assert.Err(st.Recv()))
			_ = st.CloseSend()
			_, _ = st.Recv()
			synctest.Wait()
		}
		samples, _ := scrapedBy(t, e.s)
		for _, code := range []string{"UNAUTHORIZED", "FORBIDDEN", "OK"} {
			if n := samples[`tidegate_rpc_answers_total{code="`+code+`",rpc="Telemetry"}`]; n != 1 {
				t.Errorf("%v streams with %s, want 1", n, code)
			}
		}
	})
}
