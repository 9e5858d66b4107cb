package server_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// clients returns a page of GET /v1/clients for a key, which is empty without access rules.
func (e *env) clients(key, query string) status.ClientPage {
	e.t.Helper()
	r := httptest.NewRequest("GET", "https://h/v1/clients"+query, nil)
	if key != "" {
		r.SetBasicAuth(key, secretMark+key)
	}
	w := httptest.NewRecorder()
	checkHTTP(e.t, e.s.Handler()).ServeHTTP(w, r)
	if w.Code != 200 {
		e.t.Fatalf("GET /v1/clients%s: %d %s", query, w.Code, w.Body)
	}
	var page status.ClientPage
	decode(e.t, w.Body.Bytes(), &page)
	return page
}

func idsOf(page status.ClientPage) (ids []string) {
	for _, c := range page.Clients {
		ids = append(ids, c.ID)
	}
	return ids
}

// GET /v1/clients shows each client with its leases and waiting receives.
func TestClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		begin := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		settings := consumer(rmqpb.ClientType_PUSH_CONSUMER)
		settings.UserAgent.Hostname = "box"
		x.telemetry(as(ctx, "push", wire.HeaderLanguage, "GO", wire.HeaderClientVersion, "v1.10.0"), settings)
		x.telemetry(as(ctx, "sender", wire.HeaderLanguage, "GO", wire.HeaderClientVersion, "v1.9.3"), producer("fifo", "normal"))
		x.telemetry(as(ctx, "java", wire.HeaderLanguage, "JAVA", wire.HeaderClientVersion, "5.0.7"), producer("fifo"))
		x.send(msg("normal", "1"), msg("normal", "2"), msg("normal", "3"))
		time.Sleep(time.Minute)
		held := x.one(as(ctx, "push"), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 }))
		if d := x.take("normal", `{"max": 2}`, 2); len(d) != 2 {
			t.Fatalf("%d deliveries over HTTP", len(d))
		}
		for range 3 {
			go frames(x.ReceiveMessage(as(ctx, "push"), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) {
				r.LongPollingTimeout = durationpb.New(20 * time.Second)
			})))
		}
		synctest.Wait()
		page := x.clients("", "")
		want := []status.Client{
			{ID: "java", Kind: "producer", Language: "JAVA", Version: "5.0.7", Topics: []string{"fifo"}, Since: begin, LastSeen: begin, Online: true},
			{ID: "pipe", Kind: "http", Group: "g", Topics: []string{"normal"}, Since: begin.Add(time.Minute), LastSeen: begin.Add(time.Minute), Inflight: 2},
			{ID: "push", Kind: "push_consumer", Language: "GO", Version: "v1.10.0", Host: "box", Group: "g", Topics: []string{"normal"}, Since: begin, LastSeen: begin.Add(time.Minute), Online: true, Waiting: 3, Inflight: 1},
			{ID: "sender", Kind: "producer", Language: "GO", Version: "v1.9.3", Outdated: true, Topics: []string{"fifo", "normal"}, Since: begin, LastSeen: begin, Online: true},
		}
		if len(page.Clients) != len(want) || page.Total != int64(len(want)) || page.Next != "" {
			t.Fatalf("%+v", page)
		}
		for i := range want {
			got := page.Clients[i]
			if got.Address == "" {
				t.Errorf("client %s has no address", got.ID)
			}
			got.Address, got.Since, got.LastSeen = "", got.Since.Local(), got.LastSeen.Local()
			want[i].Since, want[i].LastSeen = want[i].Since.Round(0).Local(), want[i].LastSeen.Round(0).Local()
			if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want[i]); g != w {
				t.Errorf("got  %s\nwant %s", g, w)
			}
		}
		if got, want := fmt.Sprint(page.Versions), "[{GO v1.10.0 1 false} {GO v1.9.3 1 true} {JAVA 5.0.7 1 false}]"; got != want {
			t.Errorf("versions %s, want %s", got, want)
		}
		for query, want := range map[string]string{
			"?kind=http": "pipe", "?group=g": "pipe push", "?topic=fifo": "java sender", "?topic=normal": "pipe push sender",
			"?language=go": "push sender", "?version=5.0.7": "java", "?outdated=true": "sender", "?idle=30s": "java sender", "?match=*a*": "java",
			"?limit=2": "java pipe", "?limit=2&after=pipe": "push sender", "?group=nobody": "",
		} {
			if got := strings.Join(idsOf(x.clients("", query)), " "); got != want {
				t.Errorf("GET /v1/clients%s has %q, want %q", query, got, want)
			}
		}
		ack := &rmqpb.AckMessageRequest{Topic: res("normal"), Group: res("g"), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: held.GetSystemProperties().GetReceiptHandle()}}}
		if r, err := x.AckMessage(as(ctx, "push"), ack); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Fatalf("%v, %v", r, err)
		}
		if err := x.b.DeleteTopic(t.Context(), "normal"); err != nil {
			t.Fatal(err)
		}
		for _, c := range x.clients("", "?group=g").Clients {
			if c.Inflight != 0 {
				t.Errorf("%s holds %d deliveries; one was acknowledged, and the topic of the others was deleted", c.ID, c.Inflight)
			}
		}
		cancel()
		time.Sleep(3 * time.Minute)
		if page := x.clients("", ""); page.Total != 0 || page.Clients == nil {
			t.Errorf("all have left: %+v", page)
		}
	})
}

// Settings that the broker pushes are no sign of life of the client.
func TestPushedSettingsAreNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		begin := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		st, _ := e.telemetry(as(ctx, "push"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		time.Sleep(time.Minute)
		adminCall(t, e, "PUT", "/v1/groups/g", `{"max_attempts":3}`, 201)
		if got := e.settings(st).GetBackoffPolicy().GetMaxAttempts(); got != 3 {
			t.Errorf("the pushed settings have %d attempts, want 3", got)
		}
		if got := e.clients("", "").Clients[0].LastSeen; !got.Equal(begin) {
			t.Errorf("the last request was %v after the first, want at the same time", got.Sub(begin))
		}
	})
}

// A key sees the clients of the groups and topics that it may observe, and no addresses.
func TestClientsByPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := someAccess()
		team := server.Key{Name: "team", Secrets: []server.Secret{server.NewSecret(secretMark + "team")}, Allow: []server.Rule{
			{Actions: []server.Action{server.ActionObserve}, Groups: []string{"g"}}, {Actions: []server.Action{server.ActionObserve}, Topics: []string{"norm*"}},
		}}
		access.Keys = append(access.Keys, team)
		e := start(t, server.Options{Access: access})
		e.telemetry(signed(t.Context(), "consumer"), consumer(rmqpb.ClientType_SIMPLE_CONSUMER))
		other := consumer(rmqpb.ClientType_SIMPLE_CONSUMER)
		other.GetSubscription().Group = res("other")
		e.telemetry(signed(t.Context(), "root"), other)
		e.telemetry(signed(t.Context(), "producer"), producer("normal"))
		for key, want := range map[string]string{
			"admin": "consumer/client producer/client root/client", "monitor": "consumer/client producer/client root/client",
			"team": "consumer/client producer/client", "producer": "", "nothing": "",
		} {
			page := e.clients(key, "")
			if got := strings.Join(idsOf(page), " "); got != want || page.Total != int64(len(page.Clients)) || (len(page.Versions) > 0) != (want != "") {
				t.Errorf("%s sees %q of %+v, want %q", key, got, page, want)
			}
			for _, c := range page.Clients {
				if (c.Address != "") != (key != "team") || c.Key+"/client" != c.ID {
					t.Errorf("%s sees %+v", key, c)
				}
			}
		}
		// A producer of two topics, of which the team may observe one.
		e.telemetry(signed(t.Context(), "root"), producer("fifo", "normal"))
		page := e.clients("team", "?match=root*")
		if len(page.Clients) != 1 || !slices.Equal(page.Clients[0].Topics, []string{"normal"}) || page.Clients[0].Hidden != 1 {
			t.Errorf("%+v", page)
		}
	})
}

// Pages have each client once, with any size. A page of 100 clients has at most 40 KB.
func TestClientPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		var want []string
		for i := range 103 {
			id := fmt.Sprintf("host-%03d.example.com@%d@%d", (i*31)%103, 4000+i, i)
			want = append(want, id)
			e.telemetry(as(t.Context(), id, wire.HeaderLanguage, "GO", wire.HeaderClientVersion, "5.1.4"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		}
		slices.Sort(want)
		for _, limit := range []int{1, 7, 102, 103, 104} {
			var got []string
			for next, more := "", true; more; more = next != "" {
				page := e.clients("", fmt.Sprintf("?limit=%d&after=%s", limit, url.QueryEscape(next)))
				got, next = append(got, idsOf(page)...), page.Next
				if page.Total != 103 || len(page.Clients) > limit {
					t.Fatalf("%+v", page)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("pages of %d have %q, want %q", limit, got, want)
			}
		}
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/clients", nil))
		if n := w.Body.Len(); n > 40<<10 {
			t.Errorf("a page of 100 clients has %d bytes", n)
		}
		for _, query := range []string{"limit=1001", "limit=-1", "limit=x", "match=[a", "kind=robot", "idle=soon", "idle=-1s", "outdated=yes", "names=1"} {
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/clients?"+query, nil))
			if w.Code != 400 {
				t.Errorf("GET /v1/clients?%s: %d %s", query, w.Code, w.Body)
			}
		}
	})
}

// A failure has the client that received the delivery, over HTTP and gRPC, and after a timeout.
func TestFailuresHaveTheirClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		x.send(msg("normal", "1"), msg("normal", "2"), msg("normal", "3"))
		var got []struct {
			Handle string `json:"handle"`
		}
		var answer struct {
			Messages *[]struct {
				Handle string `json:"handle"`
			} `json:"messages"`
		}
		answer.Messages = &got
		x.ok("/v1/groups/g/topics/normal/receive", `{"max": 1, "invisible_duration": "10s"}`, &answer, wire.HeaderClientID, "web")
		x.ok("/v1/groups/g/retry", fmt.Sprintf(`{"handle": %q, "after": "1h", "reason": "no"}`, got[0].Handle), nil, wire.HeaderClientID, "web")
		x.ok("/v1/groups/g/topics/normal/receive", `{"max": 1, "invisible_duration": "10s"}`, nil, wire.HeaderClientID, "slow")
		x.one(as(t.Context(), "grpc"), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) {
			r.BatchSize, r.InvisibleDuration = 1, durationpb.New(20*time.Second)
		}))
		time.Sleep(30 * time.Second)
		r := httptest.NewRecorder()
		x.s.Handler().ServeHTTP(r, httptest.NewRequest("GET", "/v1/groups/g/failures", nil))
		var page status.FailurePage
		decode(t, r.Body.Bytes(), &page)
		var text []string
		for _, f := range page.Failures {
			text = append(text, f.Cause+" "+f.Client)
		}
		if want := "timeout grpc, timeout slow, failed web"; strings.Join(text, ", ") != want {
			t.Errorf("the failures are %q, want %q", text, want)
		}
	})
}
