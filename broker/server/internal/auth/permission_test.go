package auth

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

func resource(name string) *rmqpb.Resource { return &rmqpb.Resource{Name: name} }

func TestNeedsOfRPCs(t *testing.T) {
	toTopics := func(topics ...string) *rmqpb.SendMessageRequest {
		q := &rmqpb.SendMessageRequest{}
		for _, name := range topics {
			q.Messages = append(q.Messages, &rmqpb.Message{Topic: resource(name)})
		}
		return q
	}
	admin := access.OnServer(access.Admin)
	for name, c := range map[string]struct {
		rpc     string
		request any
		want    []access.Need
	}{
		"unknown":              {"SomethingNew", nil, []access.Need{admin}},
		"of another type":      {"SendMessage", &rmqpb.AckMessageRequest{}, []access.Need{admin}},
		"send to one topic":    {"SendMessage", toTopics("a", "a"), []access.Need{access.Signed(), access.ToSend("a")}},
		"send to two topics":   {"SendMessage", toTopics("a", "b", "a"), []access.Need{access.Signed(), access.ToSend("a"), access.ToSend("b"), access.ToSend("a")}},
		"send without message": {"SendMessage", toTopics(), []access.Need{access.Signed()}},
		"acknowledge":          {"AckMessage", &rmqpb.AckMessageRequest{Topic: resource("a"), Group: resource("g")}, []access.Need{access.ToReceive("a", "g")}},
		"heartbeat of a group": {"Heartbeat", &rmqpb.HeartbeatRequest{Group: resource("g")}, []access.Need{access.AsGroup("g")}},
		"heartbeat":            {"Heartbeat", &rmqpb.HeartbeatRequest{}, []access.Need{access.Signed()}},
	} {
		if got := NeedsOfRPC(c.rpc, c.request); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestNeedsOfRoutes(t *testing.T) {
	for name, c := range map[string]struct {
		pattern      string
		topic, group string
		query        string
		want         access.Need
		open         bool
	}{
		"unknown":                 {pattern: "GET /new", want: access.OnServer(access.Admin)},
		"probe":                   {pattern: "GET /healthz", open: true},
		"send":                    {pattern: "POST /v1/topics/{topic}/messages", topic: "a", want: access.ToSend("a")},
		"receive":                 {pattern: "POST /v1/groups/{group}/topics/{topic}/receive", topic: "a", group: "g", want: access.ToReceive("a", "g")},
		"redrive":                 {pattern: "POST /v1/groups/{group}/dead-letters/redrive", group: "g", want: access.OnGroup(access.Admin, "g")},
		"list of all topics":      {pattern: "GET /v1/topics", want: access.OnServer(access.Observe)},
		"page of the list":        {pattern: "GET /v1/topics", query: "limit=1", want: access.Signed()},
		"settings of the server":  {pattern: "PUT /v1/throttle", want: access.OnServer(access.Admin)},
		"deletion of a topic":     {pattern: "DELETE /v1/topics/{topic}", topic: "a", want: access.OnTopic(access.Admin, "a")},
		"description of a topic":  {pattern: "GET /v1/topics/{topic}", topic: "a", want: access.OnTopic(access.Observe, "a")},
		"acknowledgement by HTTP": {pattern: "POST /v1/groups/{group}/acknowledge", group: "g", want: access.AsGroup("g")},
	} {
		needs, open := NeedsOfRoute(c.pattern)
		if open != c.open {
			t.Errorf("%s: open to everyone: %v", name, open)
		}
		if open || needs == nil {
			continue
		}
		r := httptest.NewRequest(http.MethodGet, "/x?"+c.query, nil)
		r.SetPathValue("topic", c.topic)
		r.SetPathValue("group", c.group)
		if got := needs(r); !slices.Equal(got, []access.Need{c.want}) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
