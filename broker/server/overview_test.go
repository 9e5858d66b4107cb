package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// requestJSON makes a request of the handler and decodes the response into out.
func (e *env) requestJSON(method, path string, want int, out any) *httptest.ResponseRecorder {
	e.t.Helper()
	w := e.serve(httptest.NewRequest(method, path, nil))
	assert.MustThat(e.t, w.Code == want, "%s %s: %d %s, want %d", method, path, w.Code, w.Body, want)
	if out != nil {
		if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
			e.t.Fatalf("%s %s: %v in %s", method, path, err, w.Body)
		}
	}
	return w
}

// The overview has the version, the times, the state of the server, and the figures of the engine.
func TestOverview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var disk error
		e := start(t, server.Options{Version: "v9.8.7"}, &faulty{append: func(context.Context, []engine.Incoming) error { return disk }})
		opened := time.Now()
		e.send(msg("normal", "1"), msg("normal", "2"))
		time.Sleep(90 * time.Second)
		e.one(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 }))
		var o status.Overview
		e.requestJSON("GET", "/v1/overview", 200, &o)
		if o.Version != "v9.8.7" || !o.Ready || o.NotReady != "" || !o.Started.Equal(opened) || !o.Now.Equal(time.Now()) || !o.AsOf.Equal(time.Now()) {
			t.Errorf("%+v", o)
		}
		if o.Totals.Topics != 2 || o.Totals.Inflight != 1 || o.Totals.Ready != 1 || o.Counters.Delivered != 1 || o.Clients == 0 || len(o.Memory) != 3 || o.Memory[0].Limit == 0 {
			t.Errorf("%+v", o)
		}
		if top := o.Top.Groups["backlog"]; len(top) != 1 || top[0].Group != "g" || top[0].Backlog.Messages != 2 {
			t.Errorf("top %+v", o.Top)
		}
		if b := o.Wrong.Behind; b.Count != 1 || b.First[0].UndeliveredMS != 90_000 {
			t.Errorf("behind %+v", b)
		}
		disk = &tidegate.Error{Code: tidegate.CodeInternalServerError, Err: errors.New("input/output error")}
		if r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "3")}}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_INTERNAL_SERVER_ERROR {
			t.Errorf("a send to a broken disk: %v, %v", r, err)
		}
		e.requestJSON("GET", "/v1/overview", 200, &o)
		if o.Ready || !strings.Contains(o.NotReady, "input/output error") {
			t.Errorf("after a failed read: ready %v, %q", o.Ready, o.NotReady)
		}
		e.requestJSON("GET", "/v1/overview?x=1", 400, nil)
	})
}

// An overview has at most 50 KB, for any names and any number of topics and groups.
func TestOverviewIsBounded(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		long := strings.Repeat("x", 114)
		for i := range 60 {
			topic, group := fmt.Sprintf("%s-%05d", long, i), fmt.Sprintf("%s-%05d", long, i)
			assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), topic, settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 1}})))
			e.send(msg(topic, "1"))
			ds := e.lease(1, transport.ReceiveRequest{Group: group, Topic: topic, Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Hour})
			if i%2 == 0 {
				assert.Must(t, assert.Err(e.b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"})))
				e.send(msg(topic, "2"))
			} else if _, err := e.b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: 2 * time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		var o status.Overview
		w := e.requestJSON("GET", "/v1/overview", 200, &o)
		if n := w.Body.Len(); n > 50_000 || o.Wrong.Throttles.Count != 60 || o.Wrong.Behind.Count != 30 || o.Wrong.DeadLetters.Count != 30 {
			t.Errorf("%d bytes with %+v", n, o.Wrong)
		}
	})
}

// The history has the messages of each slot. Its counters are those of the live stream, so a client
// can go on with it.
func TestHistory(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		opened := time.Now()
		time.Sleep(time.Second)
		e.send(msg("normal", "1"), msg("normal", "2"))
		e.ack(e.one(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 })))
		time.Sleep(14 * time.Second)
		var h engine.HistoryResult
		e.requestJSON("GET", "/v1/history?topics=normal,none&groups=g,none", 200, &h)
		next, end := e.watchLive("?topics=normal&groups=g")
		defer end()
		live, _ := next()
		if !h.AsOf.Equal(time.Now()) || !h.Started.Equal(opened) || h.StepMS != 10_000 || len(h.Topics) != 1 || len(h.Groups) != 1 {
			t.Fatalf("%+v", h)
		}
		topic, group := h.Topics[0], h.Groups[0]
		if fmt.Sprint(topic.Accepted, topic.Acked, topic.Backlog, group.Delivered, group.Acked, group.Backlog) != "[2 0] [1 0] [1 1] [1 0] [1 0] [1 1]" {
			t.Errorf("topic %+v, group %+v", topic, group)
		}
		if l := live.Topics[0]; l.Accepted != 2 || l.Accepted != topic.Counters.Accepted || l.Acked != 1 || l.Acked != topic.Counters.Acked || l.Backlog.Messages != topic.Backlog[1] {
			t.Errorf("the history ends with %+v, the live stream has %+v", topic, l)
		}
		if l := live.Groups[0]; l.Acked != 1 || l.Acked != group.Counters.Acked || l.Backlog.Messages != group.Backlog[1] {
			t.Errorf("the history ends with %+v, the live stream has %+v", group, l)
		}
		e.requestJSON("GET", "/v1/history", 200, &h)
		if c := live.Counters; h.Total.Counters.Accepted != c.Accepted.Messages || h.Total.Counters.Delivered != c.Delivered || h.Total.Counters.Acked != c.Acked {
			t.Errorf("the history ends with %+v, the live stream has %+v", h.Total.Counters, c)
		}
		e.requestJSON("GET", "/v1/history?window=day", 200, &h)
		assert.That(t, h.StepMS == 300_000 && fmt.Sprint(h.Total.Accepted) == "[2]", "the day %+v", h.Total)
		for _, query := range []string{"window=week", "x=1", "topics=" + strings.Repeat("t,", 100)} {
			e.requestJSON("GET", "/v1/history?"+query, 400, nil)
		}
	})
}

// A key gets the topics and groups that it may observe, and the sums of these as totals.
func TestHistoryOfAKey(t *testing.T) {
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
		for i, topic := range []string{"normal", "fifo", "fifo"} {
			if res := e.b.Send(t.Context(), []*tidegate.Message{{ID: fmt.Sprint(i), Topic: topic, Body: []byte("x"), MessageGroup: map[string]string{"fifo": "m"}[topic]}}); res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
		}
		for _, g := range []struct{ group, topic string }{{"g", "normal"}, {"other", "fifo"}} {
			if ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: g.group, Topic: g.topic, Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute}); err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
		}
		time.Sleep(2 * time.Second)
		for key, want := range map[string]struct{ named, total string }{
			"admin":    {"normal [1] fifo [2] g [1] other [1]", "[3] [2] [3]"}, // accepted, delivered, backlog
			"monitor":  {"normal [1] fifo [2] g [1] other [1]", "[3] [2] [3]"},
			"owner":    {"normal [1] g [1]", "[1] [1] [1]"}, // of norm* and g
			"producer": {"", "[] [] []"},
			"consumer": {"", "[] [] []"},
		} {
			get := func(query string) (h engine.HistoryResult) {
				w := e.asKey(key, "GET", "/v1/history"+query, "")
				if err := json.Unmarshal(w.Body.Bytes(), &h); err != nil || w.Code != 200 {
					t.Fatalf("%s: %d %s", key, w.Code, w.Body)
				}
				return h
			}
			named := get("?topics=normal,fifo&groups=g,other")
			var got []string
			for _, s := range named.Topics {
				got = append(got, fmt.Sprint(s.Name, " ", s.Accepted))
			}
			for _, s := range named.Groups {
				got = append(got, fmt.Sprint(s.Name, " ", s.Delivered))
			}
			if text := strings.Join(got, " "); text != want.named {
				t.Errorf("%s gets %q, want %q", key, text, want.named)
			}
			h := get("")
			if text := fmt.Sprint(h.Total.Accepted, h.Total.Delivered, h.Total.Backlog); text != want.total {
				t.Errorf("the total of %s is %q, want %q", key, text, want.total)
			}
			if *h.LeftOut != (engine.HistoryLeftOut{}) || key == "owner" && h.Total.Counters != (engine.HistoryCounters{Accepted: 1, Delivered: 1}) {
				t.Errorf("%s gets %+v", key, h)
			}
		}
	})
}

// A piped is a response that a test reads line by line while it is written.
type piped struct {
	*io.PipeWriter
	header http.Header
	status int
}

func (p *piped) Header() http.Header { return p.header }
func (p *piped) WriteHeader(s int)   { p.status = s }
func (p *piped) Flush()              {}

// watchLive begins a live stream. next returns its next line, and end ends the stream.
func (e *env) watchLive(query string, edit ...func(*http.Request)) (next func() (server.Live, string), end context.CancelFunc) {
	ctx, cancel := context.WithCancel(e.t.Context())
	r := httptest.NewRequestWithContext(ctx, "GET", "https://h/v1/live"+query, nil)
	for _, f := range edit {
		f(r)
	}
	from, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer to.Close()
		defer func() { _ = recover() }() // the handler aborts a response without a reader
		e.s.Handler().ServeHTTP(&piped{PipeWriter: to, header: http.Header{}}, r)
	}()
	lines := bufio.NewScanner(from)
	next = func() (l server.Live, text string) {
		e.t.Helper()
		if !lines.Scan() {
			return l, ""
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			e.t.Errorf("%v: %s", err, lines.Text())
		}
		return l, lines.Text()
	}
	return next, func() { cancel(); from.Close(); <-done }
}

func by(key string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth(key, secretMark+key) }
}

// A stream has a line for each interval, at the same moments as other streams, with the totals and
// the named subjects.
func TestLive(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.send(msg("normal", "1"), msg("normal", "2"))
		e.one(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 }))
		time.Sleep(300 * time.Millisecond)
		next, end := e.watchLive("?every=5s&topics=normal,none&groups=g,g/normal,g/none,none")
		other, endOther := e.watchLive("?every=5s")
		first, _ := next()
		other()
		began := time.Now()
		if first.Totals == nil || first.Totals.Inflight != 1 || first.Counters.Delivered != 1 || len(first.TopGroups) != 1 || len(first.TopTopics) != 1 {
			t.Errorf("%+v", first)
		}
		if len(first.Topics) != 1 || first.Topics[0].Stored.Messages != 2 || len(first.Groups) != 2 || first.Groups[0].Topic != "" || first.Groups[1].Topic != "normal" || first.Groups[0].Backlog.Messages != 2 {
			t.Errorf("topics %+v, groups %+v", first.Topics, first.Groups)
		}
		second, _ := next()
		if d := time.Since(began); d != 4700*time.Millisecond || second.Now.Truncate(5*time.Second) != second.Now {
			t.Errorf("the next line came after %v at %v, want the next multiple of the interval", d, second.Now)
		}
		if l, _ := other(); !l.Now.Equal(second.Now) || !l.AsOf.Equal(second.AsOf) {
			t.Errorf("another stream has a line of %v as of %v, want %v as of %v", l.Now, l.AsOf, second.Now, second.AsOf)
		}
		end()
		endOther()
		synctest.Wait()
		assert.Equal(t, "streams after the clients have gone", e.s.Parts().Streams, 0)
		for _, query := range []string{"every=999ms", "every=61s", "every=x", "x=1", "topics=" + strings.Repeat("t,", 100)} {
			e.requestJSON("GET", "/v1/live?"+query, 400, nil)
		}
	})
}

// A key sees its names only, and no totals; a stream ends when the rules reject it, and when its
// session ends.
func TestLiveOfAKey(t *testing.T) {
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
		for _, topic := range []string{"normal", "fifo"} {
			assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{})))
			if res := e.b.Send(t.Context(), []*tidegate.Message{{ID: "1", Topic: topic, Body: []byte("x"), MessageGroup: map[string]string{"fifo": "m"}[topic]}}); res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
		}
		next, end := e.watchLive("?topics=normal,fifo&groups=g,other", by("owner"))
		defer end()
		l, text := next()
		if l.Totals != nil || l.Counters != nil || len(l.Topics) != 1 || len(l.TopTopics) != 1 || len(l.Groups) != 1 || strings.Contains(text, "fifo") {
			t.Errorf("the owner of norm* sees %s", text)
		}
		if err := e.s.SetAccess(withSecrets(func(c *server.AccessConfig) {
			c.Keys = c.Keys[:len(c.Keys)-1] // the owner's
		})); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, text := next(); !strings.Contains(text, `"error"`) || time.Since(began) != 0 {
			t.Errorf("after %v, the key is gone and the stream has %s", time.Since(began), text)
		}
		if _, text := next(); text != "" {
			t.Errorf("the stream continues with %s", text)
		}

		p := &page{e: e}
		p.login("monitor", secretMark+"monitor", 200)
		next, end = e.watchLive("?every=1m", func(r *http.Request) {
			r.RemoteAddr, r.TLS = "127.0.0.1:1234", nil
			r.AddCookie(p.cookies[0])
			r.Header.Set("X-Tidegate-Session", p.token)
		})
		defer end()
		lines := 0
		for lines <= 12*60+1 {
			l, text := next()
			if text == "" {
				break
			}
			if lines++; l.Totals == nil && !strings.Contains(text, "session") {
				t.Errorf("line %d of a session is %s", lines, text)
			}
		}
		if lines != 12*60+1 { // one each minute from 0 to 719, and the error
			t.Errorf("the stream of a session had %d lines", lines)
		}
	})
}

// There are at most 64 streams at a time, and a key can hold as many as it leaves free for others.
func TestKeysShareTheLiveStreams(t *testing.T) {
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
		var ends []context.CancelFunc
		fill := func(key string, want int) {
			t.Helper()
			for n := 0; ; n++ {
				ctx, end := context.WithCancel(t.Context())
				w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "https://h/v1/live?every=1m", nil)
				by(key)(r)
				go func() {
					defer func() { _ = recover() }() // the handler aborts a response without a reader
					e.s.Handler().ServeHTTP(w, r)
				}()
				synctest.Wait()
				if w.Code == http.StatusOK && n <= server.MaxLive {
					ends = append(ends, end)
					continue
				}
				end()
				if n != want || w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "share") {
					t.Errorf("%s has %d streams, want %d; the next got %d %s", key, n, want, w.Code, w.Body)
				}
				return
			}
		}
		fill("producer", 32)
		fill("monitor", 16)
		fill("producer", 0)
		fill("owner", 8)
		for _, end := range ends[:32] {
			end()
		}
		synctest.Wait()
		fill("monitor", 12) // 28 with its 16, beside the 8 of the owner: 28 are free
		for _, end := range ends {
			end()
		}
		synctest.Wait()
		assert.Equal(t, "streams after the clients have gone", e.s.Parts().Streams, 0)
		fill("admin", 32)
		for _, end := range ends {
			end()
		}
		synctest.Wait()
	})
}

// Each line has at most 8 KiB, for names of any length, and all watched names are in the lines.
func TestLiveLinesAreShort(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		var names []string
		for i := range server.MaxWatched {
			name := fmt.Sprintf("%s-%03d", strings.Repeat("x", 116), i)
			assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), name, settings.Topic{Queues: 1})))
			e.send(msg(name, "1"))
			names = append(names, name)
		}
		next, end := e.watchLive("?topics=" + strings.Join(names, ","))
		defer end()
		seen := 0
		for more := true; more; {
			l, text := next()
			assert.That(t, len(text) <= server.MaxLine, "a line has %d bytes", len(text))
			for _, topic := range l.Topics {
				assert.MustThat(t, topic.Name == names[seen], "topic %d is %s", seen, topic.Name)
				seen++
			}
			more = l.More
		}
		assert.Equal(t, "topics", seen, server.MaxWatched)
	})
}

// backlogs creates topics and groups, the i-th with i messages.
func (e *env) backlogs(n int, name func(i int) string) {
	e.t.Helper()
	for i := range n {
		assert.Must(e.t, assert.Err(e.b.PutTopic(e.t.Context(), name(i), settings.Topic{Queues: 1})))
		r := transport.ReceiveRequest{Group: fmt.Sprintf("group-%02d", i%5), Topic: name(i), Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Hour}
		assert.Must(e.t, assert.Err(e.b.Receive(e.t.Context(), r)))
		var ms []*tidegate.Message
		for j := range i {
			ms = append(ms, &tidegate.Message{ID: fmt.Sprint(j), Topic: name(i), Body: []byte("12345")})
		}
		for _, res := range e.b.Send(e.t.Context(), ms) {
			assert.Must(e.t, res.Err)
		}
	}
}

// The summary view has pages in each order, with conditions, and the number of rows.
func TestSummaryPages(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.backlogs(30, func(i int) string { return fmt.Sprintf("topic-%02d", i) })
		var names []string
		for next := ""; ; {
			var page server.TopicSummaries
			e.requestJSON("GET", "/v1/topics?view=summary&sort=-backlog&state=backlog&match=topic-*&limit=7&after="+url.QueryEscape(next), 200, &page)
			assert.MustThat(t, page.Total == 29 && !page.AsOf.IsZero(), "%+v", page)
			for _, row := range page.Topics {
				names = append(names, row.Name)
			}
			if next = page.Next; next == "" {
				break
			}
		}
		var want []string
		for i := 29; i > 0; i-- {
			want = append(want, fmt.Sprintf("topic-%02d", i))
		}
		assert.That(t, slices.Equal(names, want), "%v, want %v", names, want)

		var groups server.GroupSummaries
		e.requestJSON("GET", "/v1/groups?view=summary&topic=topic-07", 200, &groups)
		if len(groups.Groups) != 1 || groups.Groups[0].Group != "group-02" || groups.Groups[0].Backlog.Messages != 7 || groups.Groups[0].Backlog.Bytes != 35 {
			t.Errorf("%+v", groups)
		}
		e.requestJSON("GET", "/v1/groups?view=summary&sort=-ready&match=group-01&limit=2", 200, &groups)
		if groups.Total != 6 || len(groups.Groups) != 2 || groups.Groups[0].Topic != "topic-26" || groups.Groups[1].Topic != "topic-21" {
			t.Errorf("%+v", groups)
		}
		e.requestJSON("GET", "/v1/groups?view=summary&state=parked", 200, &groups)
		assert.That(t, groups.Groups != nil && len(groups.Groups) == 0, "without rows: %+v, want an empty list", groups)
		for _, query := range []string{"view=x", "sort=name", "state=backlog", "view=summary&sort=x", "view=summary&state=x", "view=summary&after=x", "view=summary&limit=1001", "view=summary&sort=-"} {
			for _, list := range []string{"topics", "groups"} {
				if query == "view=summary&sort=-" {
					continue // the names, the last first
				}
				e.requestJSON("GET", "/v1/"+list+"?"+query, 400, nil)
			}
		}
		e.requestJSON("GET", "/v1/topics?view=summary&topic=x", 400, nil)
	})
}

// A page of 100 rows has at most 40 KB, also with the longest names.
func TestSummaryPageIsBounded(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.backlogs(100, func(i int) string { return fmt.Sprintf("%s-%03d", strings.Repeat("x", 116), i) })
		time.Sleep(time.Hour)
		for _, list := range []string{"topics", "groups"} {
			if n := e.requestJSON("GET", "/v1/"+list+"?view=summary&limit=100", 200, nil).Body.Len(); n > 40_000 {
				t.Errorf("a page of %s has %d bytes", list, n)
			}
		}
	})
}

// A list shows the changes of topics and groups at once, also within the second of a list before.
func TestSummariesAfterChanges(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		change := func(method, path, body string) {
			t.Helper()
			w := e.asKey("", method, path, body)
			assert.That(t, w.Code < 300, "%s %s: %d %s", method, path, w.Code, w.Body)
		}
		expect := func(when, wantTopics, wantGroups string) {
			t.Helper()
			var topics server.TopicSummaries
			e.requestJSON("GET", "/v1/topics?view=summary&match=orders", 200, &topics)
			var groups server.GroupSummaries
			e.requestJSON("GET", "/v1/groups?view=summary", 200, &groups)
			var names [2][]string
			for _, row := range topics.Topics {
				names[0] = append(names[0], fmt.Sprint(row.Name, row.Stored.Messages))
			}
			for _, row := range groups.Groups {
				names[1] = append(names[1], row.Group)
			}
			if got := strings.Join(names[0], " ") + "|" + strings.Join(names[1], " "); got != wantTopics+"|"+wantGroups {
				t.Errorf("%s the lists are %q, want %q", when, got, wantTopics+"|"+wantGroups)
			}
		}
		expect("at first", "", "")
		change("PUT", "/v1/topics/orders", `{}`)
		expect("with a topic", "orders0", "")
		change("PUT", "/v1/groups/billing", `{}`)
		expect("with a group", "orders0", "billing")
		change("POST", "/v1/topics/orders/messages", `{"body_text":"x"}`)
		change("PUT", "/v1/topics/orders", `{}`)
		expect("after a message", "orders1", "billing")
		change("POST", "/v1/topics/orders/purge", "")
		expect("after a purge", "orders0", "billing")
		change("DELETE", "/v1/groups/billing", "")
		expect("without the group", "orders0", "")
		change("DELETE", "/v1/topics/orders", "")
		expect("without the topic", "", "")
	})
}

// GET /v1/throttle has the limits that reject sends, with reason and time, and those that are near.
func TestThrottleReportsLimits(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "full", settings.Topic{MaxBacklog: settings.Limit{Messages: 2, Bytes: 1000}})))
		send := func() error {
			m := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "full", Body: []byte("x")}
			return e.b.Send(t.Context(), []*tidegate.Message{m})[0].Err
		}
		get := func() (a status.Throttles) {
			t.Helper()
			w := e.serve(httptest.NewRequestWithContext(t.Context(), "GET", "/v1/throttle", nil))
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
				t.Fatalf("%d, %v: %s", w.Code, err, w.Body)
			}
			return a
		}
		limits := func(ls []status.LimitState) (names []string) {
			for _, l := range ls {
				names = append(names, l.Limit)
			}
			return names
		}
		if a := get(); len(a.Throttles) != 0 || len(a.NotReached) != 2 {
			t.Fatalf("throttles %q, not reached %q", limits(a.Throttles), limits(a.NotReached))
		}
		for range 2 {
			assert.Must(t, send())
		}
		assert.MustThat(t, send() != nil, "the third is accepted")
		since := time.Now()
		time.Sleep(time.Minute)
		a := get()
		if len(a.Throttles) != 1 || len(a.NotReached) != 1 {
			t.Fatalf("throttles %q, not reached %q", limits(a.Throttles), limits(a.NotReached))
		}
		th := a.Throttles[0]
		if th.Limit != "topic backlog messages" || th.Subject != "full" || th.Value != 2 || th.Mark != 2 || th.Resume != 1 || th.Unit != "messages" || !th.On || !th.Since.Equal(since) {
			t.Errorf("the limit is %+v, want it since %v", th, since)
		}
		if n := a.NotReached[0]; n.Limit != "topic backlog bytes" || n.Value != 2 || n.Mark != 1000 || n.On || !n.Since.IsZero() {
			t.Errorf("not reached: %+v", n)
		}
	})
}

// A trace has the contents of the message if the query asks for them, as text or in base64.
func TestTraceContents(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		for id, body := range map[string]string{"text": "häßlich", "bytes": "\x00\xff"} {
			m := &tidegate.Message{ID: id, Topic: "normal", Keys: []string{"k7"}, Properties: map[string]string{"shop": "5"}, Body: []byte(body)}
			assert.Must(t, e.b.Send(t.Context(), []*tidegate.Message{m})[0].Err)
		}
		const path = "/v1/topics/normal/messages/"
		for _, c := range []struct {
			query string
			want  []string
			not   []string
		}{
			{"text", []string{`"body_size": 9`}, []string{`"body`, "k7", "shop"}},
			{"text?contents=true", []string{`"body": "aMOkw59saWNo"`, "k7", "shop"}, []string{"body_text"}},
			{"text?text=true", []string{`"body_text": "häßlich"`, "k7", "shop"}, []string{`"body": `}},
			{"bytes?text=true", []string{`"body": "AP8="`, "k7"}, []string{"body_text"}},
		} {
			got := strings.ReplaceAll(adminCall(t, e, "GET", path+c.query, "", 200, c.want...), `"body_size"`, "size")
			for _, not := range c.not {
				assert.That(t, !strings.Contains(got, not), "%s has %s: %s", c.query, not, got)
			}
		}
	})
}
