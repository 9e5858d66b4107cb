package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/endtoend"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// announcing returns a context of a client that announces features.
func announcing(ctx context.Context, features string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, wire.HeaderFeatures, features)
}

// watch makes a receive that requests a watch. It returns the number of messages, and whether the
// server has left a watch.
func (e *env) watch(ctx context.Context, r *rmqpb.ReceiveMessageRequest) (messages int, left bool) {
	e.t.Helper()
	st := assert.Value(e.ReceiveMessage(announcing(ctx, "packed, watch"), r))(e.t)
	for {
		f, err := st.Recv()
		if err == io.EOF {
			return messages, slices.Equal(st.Trailer().Get("x-tidegate-watched"), []string{"true"})
		}
		assert.Must(e.t, err)
		if code := f.GetStatus().GetCode(); code != 0 && code != rmqpb.Code_OK && code != rmqpb.Code_MESSAGE_NOT_FOUND {
			e.t.Fatal(f)
		}
		messages += len(f.GetPacked())
	}
}

// mustWatch makes a receive that finds no message and leaves a watch at once.
func (e *env) mustWatch(ctx context.Context, topic string) {
	e.t.Helper()
	began := time.Now()
	if n, left := e.watch(ctx, receiveRequest(topic)); n > 0 || !left || time.Since(began) > 0 {
		e.t.Fatalf("%d messages, left %t, after %v; want a watch at once", n, left, time.Since(began))
	}
}

// watcher opens a Telemetry stream of a client that reads reports. It fails after an hour.
func (e *env) watcher(ctx context.Context, kind rmqpb.ClientType) stream {
	e.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(time.Hour, cancel)
	e.t.Cleanup(func() {
		late.Stop()
		cancel()
	})
	st, _ := e.telemetry(announcing(ctx, "packed, watch"), consumer(kind))
	return st
}

// reported reads the next command besides settings, which has to report queues. A test that deletes
// a group gets new settings beside the reports.
func (e *env) reported(st stream) []wire.Queue {
	e.t.Helper()
	cmd, err := st.Recv()
	for err == nil && cmd.GetSettings() != nil {
		cmd, err = st.Recv()
	}
	assert.Must(e.t, err)
	queues := wire.ReadyQueues(cmd)
	assert.MustThat(e.t, len(queues) != 0, "command %v, want a report", cmd)
	slices.SortFunc(queues, func(a, b wire.Queue) int { return int(a.Queue - b.Queue) })
	return queues
}

// wantWatches fails the test unless streams have so many watches.
func (e *env) wantWatches(want int64) {
	e.t.Helper()
	synctest.Wait()
	assert.MustEqual(e.t, "streams have watches", e.s.Parts().Watches.Count(), want)
}

// A receive of a client that reads reports ends at once and leaves a watch. The next message is
// reported with the topic and the queue that the client has named. Middleware changes nothing.
func TestWatchOverGRPC(t *testing.T) {
	for name, o := range map[string]server.Options{
		"without middleware": {},
		"with middleware": {Intercept: func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			return next(ctx)
		}},
	} {
		for kind, queues := range map[rmqpb.ClientType][]int32{
			rmqpb.ClientType_PUSH_CONSUMER:   {-1, 0},
			rmqpb.ClientType_SIMPLE_CONSUMER: {-1, 1}, // it names a queue and receives from all
		} {
			synctest.Test(t, func(t *testing.T) {
				e := start(named{t, name}, o)
				st := e.watcher(e.ctx(), kind)
				for i, queue := range queues {
					request := receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Id = queue })
					began := time.Now()
					if n, left := e.watch(e.ctx(), request); n != 0 || !left || time.Since(began) > 0 {
						t.Fatalf("%s, queue %d: %d messages, left %t, after %v; want a watch at once", name, queue, n, left, time.Since(began))
					}
					e.wantWatches(1)
					e.send(msg("normal", fmt.Sprint(i, "a")), msg("normal", fmt.Sprint(i, "b"))) // one in each queue
					if got := e.reported(st); !slices.Equal(got, []wire.Queue{{Topic: "normal", Queue: queue}}) {
						t.Errorf("%s, queue %d: %v was reported", name, queue, got)
					}
					e.wantWatches(0)
					if n, left := e.watch(e.ctx(), receiveRequest("normal")); n < 2 || !left {
						t.Errorf("%s, queue %d: %d messages, left %t; want both, and a watch for later ones", name, queue, n, left)
					}
					e.send(msg("normal", fmt.Sprint(i, "c")))
					e.reported(st)
					if n, left := e.watch(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 })); n != 1 || left {
						t.Errorf("%s: a receive of one message has %d, and leaves a watch: %t", name, n, left)
					}
				}
			})
		}
	}
}

// A receive waits as for any client if the client cannot read a report, or the server has reached
// its limit of watches.
func TestNoWatchOverGRPC(t *testing.T) {
	for name, c := range map[string]struct {
		stream  string // features; empty: none is open
		receive string // features
		limit   bool
	}{
		"no stream":                    {"", "packed, watch", false},
		"a stream without the feature": {"packed", "packed, watch", false},
		"a receive without it":         {"packed, watch", "packed", false},
		"the limit":                    {"packed, watch", "packed, watch", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := start(named{t, name}, server.Options{})
			if c.limit {
				e.s.LimitWatches(0)
			}
			if c.stream != "" {
				e.telemetry(announcing(e.ctx(), c.stream), consumer(rmqpb.ClientType_PUSH_CONSUMER))
			}
			began := time.Now()
			st, err := e.ReceiveMessage(announcing(e.ctx(), c.receive), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) {
				r.LongPollingTimeout = nil
			}))
			fs, err := frames(st, err)
			if err != nil || fs[0].GetStatus().GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND || len(st.Trailer().Get(wire.TrailerWatched)) > 0 {
				t.Errorf("%s: %v, %v, trailer %v", name, fs, err, st.Trailer())
			}
			if d, least := time.Since(began), (server.Options{}).WithDefaults().MinLongPolling; d < least {
				t.Errorf("%s: it waited %v, want at least %v", name, d, least)
			}
		})
	}
}

// Each event that ends waiting receives also ends watches. The server asks the client to receive
// again, or ends its stream.
func TestWatchesEnd(t *testing.T) {
	both := map[string]string{"old": "*", "new": "*"}
	all := []wire.Queue{{Topic: "fifo", Queue: -1}, {Topic: "normal", Queue: -1}}
	for name, c := range map[string]struct {
		event func(t *testing.T, e *env, st stream, cancel context.CancelFunc)
		ends  bool // the stream ends
	}{
		"other rules": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			assert.Must(t, e.s.SetAccess(teams(map[string]string{"old": "normal", "new": "*"})))
		}, false},
		"other settings of the group": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{MaxAttempts: 7})))
		}, false},
		"the client terminates": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			r, err := e.NotifyClientTermination(signed(t.Context(), "old"), &rmqpb.NotifyClientTerminationRequest{Group: res("g")})
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatal(r, err)
			}
		}, false},
		"the group is deleted": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			assert.Must(t, e.b.DeleteGroup(t.Context(), "g"))
		}, false},
		"the topics are deleted": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			for _, of := range all {
				assert.Must(t, e.b.DeleteTopic(t.Context(), of.Topic))
			}
		}, false},
		"no rules for the client": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			assert.Must(t, e.s.SetAccess(teams(map[string]string{"new": "*"})))
		}, true},
		"the client ends its stream": {func(_ *testing.T, _ *env, st stream, _ context.CancelFunc) { _ = st.CloseSend() }, true},
		"the connection is lost":     {func(_ *testing.T, _ *env, _ stream, cancel context.CancelFunc) { cancel() }, true},
		"the server is shutting down": {func(_ *testing.T, e *env, _ stream, _ context.CancelFunc) {
			go e.s.Shutdown(context.Background())
		}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := start(named{t, name}, server.Options{Access: teams(both)})
			assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{})))
			ctx, cancel := context.WithCancel(signed(t.Context(), "old"))
			defer cancel()
			st := e.watcher(ctx, rmqpb.ClientType_PUSH_CONSUMER)
			for _, of := range all {
				e.mustWatch(signed(t.Context(), "old"), of.Topic)
			}
			e.wantWatches(2)
			c.event(t, e, st, cancel)
			e.wantWatches(0)
			if c.ends {
				for {
					if _, err := st.Recv(); err != nil {
						return
					}
				}
			}
			got := map[string]bool{}
			for len(got) < len(all) {
				cmd, err := st.Recv()
				assert.MustThat(t, err == nil, "%s: %v", name, err)
				for _, of := range wire.ReadyQueues(cmd) {
					got[of.Topic] = true
				}
			}
		})
	}
}

// If the rules change while a receive leaves a watch, the client gets a report, because the receive
// may no longer be permitted.
func TestWatchOfAReceiveUnderOldRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		e := start(t, server.Options{Access: teams(map[string]string{"old": "*"})}, f)
		st := e.watcher(signed(t.Context(), "old"), rmqpb.ClientType_PUSH_CONSUMER)
		f.after = func([]*tidegate.Delivery) {
			assert.NoError(t, e.s.SetAccess(teams(map[string]string{"old": "normal"})))
			synctest.Wait() // the stream has found no watch to report
		}
		if n, left := e.watch(signed(t.Context(), "old"), receiveRequest("fifo")); n > 0 || left {
			t.Errorf("%d messages, and a watch: %t", n, left)
		}
		assert.Slices(t, "was reported", e.reported(st), []wire.Queue{{Topic: "fifo", Queue: -1}})
		e.wantWatches(0)
	})
}

// Reports of many queues are split: a client reads commands of a limited size.
func TestManyReports(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		st := e.watcher(e.ctx(), rmqpb.ClientType_SIMPLE_CONSUMER)
		const n = server.MaxReported + 10
		for i := range int32(n) {
			if _, left := e.watch(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Id = i })); !left {
				t.Fatalf("receive %d leaves no watch", i)
			}
		}
		e.wantWatches(n)
		assert.Must(t, e.b.DeleteGroup(t.Context(), "g"))
		got := map[int32]bool{}
		for len(got) < n {
			queues := e.reported(st)
			if len(queues) > server.MaxReported {
				t.Fatalf("a command reports %d queues, want at most %d", len(queues), server.MaxReported)
			}
			for _, of := range queues {
				got[of.Queue] = true
			}
		}
		e.wantWatches(0)
	})
}

// clients returns a page of GET /v1/clients for a key, which is empty without access rules.
func (e *env) clients(key, query string) status.ClientPage {
	e.t.Helper()
	w := e.asKey(key, "GET", "/v1/clients"+query, "")
	assert.MustThat(e.t, w.Code == 200, "GET /v1/clients%s: %d %s", query, w.Code, w.Body)
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
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
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
		assert.MustEqual(t, "deliveries over HTTP", len(x.take("normal", `{"max": 2}`, 2)), 2)
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
		assert.MustThat(t, len(page.Clients) == len(want) && page.Total == int64(len(want)) && page.Next == "", "%+v", page)
		for i := range want {
			got := page.Clients[i]
			assert.That(t, got.Address != "", "client %s has no address", got.ID)
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
		assert.Must(t, x.b.DeleteTopic(t.Context(), "normal"))
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
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		begin := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		st, _ := e.telemetry(as(ctx, "push"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		time.Sleep(time.Minute)
		adminCall(t, e, "PUT", "/v1/groups/g", `{"max_attempts":3}`, 201)
		assert.Equal(t, "the pushed settings have attempts", e.settings(st).GetBackoffPolicy().GetMaxAttempts(), 3)
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
			{Actions: []server.Action{"observe"}, Groups: []string{"g"}}, {Actions: []server.Action{"observe"}, Topics: []string{"norm*"}},
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
				assert.That(t, (c.Address != "") == (key != "team") && c.Key+"/client" == c.ID, "%s sees %+v", key, c)
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
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
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
				assert.MustThat(t, page.Total == 103 && len(page.Clients) <= limit, "%+v", page)
			}
			assert.That(t, slices.Equal(got, want), "pages of %d have %q, want %q", limit, got, want)
		}
		w := e.serve(httptest.NewRequest("GET", "/v1/clients", nil))
		if n := w.Body.Len(); n > 40<<10 {
			t.Errorf("a page of 100 clients has %d bytes", n)
		}
		for _, query := range []string{"limit=1001", "limit=-1", "limit=x", "match=[a", "kind=robot", "idle=soon", "idle=-1s", "outdated=yes", "names=1"} {
			w := e.serve(httptest.NewRequest("GET", "/v1/clients?"+query, nil))
			assert.That(t, w.Code == 400, "GET /v1/clients?%s: %d %s", query, w.Code, w.Body)
		}
	})
}

// A failure has the client that received the delivery, over HTTP and gRPC, and after a timeout.
func TestFailuresHaveTheirClients(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
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

// rawConn connects a client that reads window bytes of each response, and no more.
func rawConn(t *testing.T, lis *bufconn.Listener, window uint32) *endtoend.Conn {
	t.Helper()
	c := assert.Value(lis.DialContext(t.Context()))(t)
	t.Cleanup(func() { c.Close() })
	raw := assert.Value(endtoend.New(c, window))(t)
	return raw
}

// request sends a request and leaves the response alone.
func request(t *testing.T, c *endtoend.Conn, rpc string, m proto.Message) {
	t.Helper()
	data, err := proto.Marshal(m)
	assert.Must(t, err)
	id, err := c.Open("/"+rmqpb.MessagingService_ServiceDesc.ServiceName+"/"+rpc, "x-mq-client-id", "raw")
	if err == nil {
		err = c.Write(id, endtoend.Message(len(data), data), true)
	}
	assert.Must(t, err)
}

// A response takes its memory until the client has read it, although its handler has returned, and
// until the connection ends at the latest.
func TestUnreadResponsesTakeMemory(t *testing.T) {
	const requests = 20
	for name, c := range map[string]struct {
		rpc    string
		m      proto.Message
		bodies int64 // of each response, at least
	}{
		"a route":           {"QueryRoute", &rmqpb.QueryRouteRequest{Topic: res("normal")}, 1 << 10},
		"a refusal":         {"AckMessage", &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("none")}, 0},
		"an unsupported":    {"PullMessage", &rmqpb.PullMessageRequest{}, 0},
		"a message, 40 KiB": {"ReceiveMessage", receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 }), 40 << 10},
	} {
		for _, read := range []bool{false, true} {
			withServer(t, server.Options{}, func(t *testing.T, e *env) {
				for i := range requests {
					e.send(msg("normal", fmt.Sprint(i), body(make([]byte, 40<<10))))
				}
				window := uint32(0)
				if read {
					window = 1 << 16
				}
				raw := rawConn(t, e.lis, window)
				for i := range requests {
					if i > 0 && read && c.bodies > 1<<10 {
						break // the window of the connection is for one
					}
					request(t, raw, c.rpc, c.m)
				}
				time.Sleep(time.Minute) // every handler has returned
				synctest.Wait()
				places, bodies := e.s.Parts().Places.Held(), e.s.Parts().Bodies.Held()
				if read {
					assert.That(t, places == 0 && bodies == 0, "%s, read: %d and %d bytes are held", name, places, bodies)
					return
				}
				if places != requests*server.PlaceSize || bodies < requests*c.bodies {
					t.Errorf("%s, unread: %d bytes of places and %d of bodies are held, want %d and %d or more", name, places, bodies, requests*server.PlaceSize, requests*c.bodies)
				}
				raw.Close()
				synctest.Wait()
				if places, bodies := e.s.Parts().Places.Held(), e.s.Parts().Bodies.Held(); places != 0 || bodies != 0 {
					t.Errorf("%s, connection closed: %d and %d bytes are held", name, places, bodies)
				}
			})
		}
	}
}

// Connections that take all places for requests do not keep out a client that takes one: the
// connection that has the most of them ends.
func TestPlacesAreShared(t *testing.T) {
	withServer(t, server.Options{MaxParkedBytes: 2 * server.MostParked}, func(t *testing.T, e *env) {
		for range 12 {
			raw := rawConn(t, e.lis, 0)
			for range server.LeastPlaces / 4 {
				request(t, raw, "QueryRoute", &rmqpb.QueryRouteRequest{Topic: res("normal")})
			}
			synctest.Wait()
			if held := e.s.Parts().Places.Held(); held > server.LeastPlaces*server.PlaceSize {
				t.Fatalf("%d bytes are held, more than %d", held, server.LeastPlaces*server.PlaceSize)
			}
		}
		assert.That(t, e.s.Parts().Places.Closed() != 0, "no connection was ended: the test shows nothing")
		queried(e.ctx(), e, e.MessagingServiceClient)
	})
}

// One connection gets half of the places at most, by gRPC's own limit.
func TestStreamsOfAConnection(t *testing.T) {
	withServer(t, server.Options{MaxParkedBytes: 2 * server.MostParked}, func(t *testing.T, e *env) {
		raw := rawConn(t, e.lis, 0)
		for range server.LeastPlaces {
			request(t, raw, "QueryRoute", &rmqpb.QueryRouteRequest{Topic: res("normal")})
		}
		synctest.Wait()
		assert.Equal(t, "streams are open", raw.Streams(), server.LeastPlaces/2)
	})
}
