package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
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
		if n := e.s.Parts().Streams; n != 0 {
			t.Errorf("%d streams after the clients have gone", n)
		}
		for _, query := range []string{"every=999ms", "every=61s", "every=x", "x=1", "topics=" + strings.Repeat("t,", 100)} {
			e.requestJSON("GET", "/v1/live?"+query, 400, nil)
		}
	})
}

// A key sees its names only, and no totals; a stream ends when the rules reject it, and when its
// session ends.
func TestLiveOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
		for _, topic := range []string{"normal", "fifo"} {
			if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{}); err != nil {
				t.Fatal(err)
			}
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
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
		if n := e.s.Parts().Streams; n != 0 {
			t.Errorf("%d streams after the clients have gone", n)
		}
		fill("admin", 32)
		for _, end := range ends {
			end()
		}
		synctest.Wait()
	})
}

// There are at most 64 streams at a time.
func TestLiveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		var ends []context.CancelFunc
		for range server.MaxLive {
			next, end := e.watchLive("")
			next()
			ends = append(ends, end)
		}
		w := e.requestJSON("GET", "/v1/live", 429, nil)
		if w.Header().Get("Retry-After") != "10" {
			t.Errorf("%v", w.Header())
		}
		for _, end := range ends {
			end()
		}
	})
}

// Each line has at most 8 KiB, for names of any length, and all watched names are in the lines.
func TestLiveLinesAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		var names []string
		for i := range server.MaxWatched {
			name := fmt.Sprintf("%s-%03d", strings.Repeat("x", 116), i)
			if _, err := e.b.PutTopic(t.Context(), name, settings.Topic{Queues: 1}); err != nil {
				t.Fatal(err)
			}
			e.send(msg(name, "1"))
			names = append(names, name)
		}
		next, end := e.watchLive("?topics=" + strings.Join(names, ","))
		defer end()
		seen := 0
		for more := true; more; {
			l, text := next()
			if len(text) > server.MaxLine {
				t.Errorf("a line has %d bytes", len(text))
			}
			for _, topic := range l.Topics {
				if topic.Name != names[seen] {
					t.Fatalf("topic %d is %s", seen, topic.Name)
				}
				seen++
			}
			more = l.More
		}
		if seen != server.MaxWatched {
			t.Errorf("%d topics, want %d", seen, server.MaxWatched)
		}
	})
}
