package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// The preview uses the settings of the group and the retention of the topic, and names settings
// that are probably wrong. --set changes only the preview.
func TestRetryPreview(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "retention.time=30s")
	tl.must("group", "create", "billing", "retry=10s 30s", "max_attempts=3")
	type preview struct {
		Attempts []struct{ After string }
		End      string
		Findings []string
	}
	var p preview
	decode(t, tl.must("retry", "preview", "billing", "orders", "-o", "json").stdout, &p)
	if len(p.Attempts) != 3 || p.Attempts[2].After != "40s" || !strings.Contains(p.End, "dead letter after 3 attempts") || len(p.Findings) != 1 || !strings.Contains(p.Findings[0], "keeps messages for 30s") {
		t.Errorf("the preview is %+v", p)
	}
	for retention, want := range map[string]string{"20s": "keeps messages for 20s", "1h": ""} { // instead of that of the topic
		p = preview{}
		decode(t, tl.must("retry", "preview", "billing", "orders", "--retention", retention, "-o", "json").stdout, &p)
		if got := strings.Join(p.Findings, "; "); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("with --retention %s the findings are %q, want %q", retention, got, want)
		}
	}
	decode(t, tl.must("retry", "preview", "billing", "--set", "max_attempts=2", "-o", "json").stdout, &p)
	assert.That(t, len(p.Attempts) == 2 && strings.Contains(tl.must("group", "show", "billing", "-o", "json").stdout, `"max_attempts": 3`), "with --set: %+v", p)
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	p = preview{}
	decode(t, tl.must("retry", "preview", "billing", "orders", "--context", "rmq", "-o", "json").stdout, &p)
	assert.That(t, len(p.Attempts) == 3 && p.Attempts[2].After == "40s", "with the settings that the server pushes: %+v", p)
	for _, args := range [][]string{{"billing", "--context", "rmq"}, {"billing", "orders", "--context", "rmq", "--set", "fifo=true"}, {"--set", "max_attempts=-7"}, {"--handler", "-1s"}} {
		tl.fails(2, "", append([]string{"retry", "preview"}, args...)...)
	}
}

// A watch prints a result at each interval, and ends in order.
func TestWatch(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--then", "release", "--max", "1")
	for _, args := range [][]string{{"status", "--watch=100ms"}, {"group", "lag", "billing", "--watch=100ms"}} {
		if r := tl.until(3, "\n", append(args, "-o", "jsonl")...); r.code != 0 || strings.Count(r.stdout, "\n") < 3 || r.stderr != "" {
			t.Errorf("%q: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
		}
	}
	tl.fails(2, "", "status", "--watch=1ms") // an interval of 1ms
	tl.terminal = true
	if r := tl.run("status", "--watch", "--http", "http://"+closedPort(t), "--no-retry"); r.code != 6 || !strings.HasSuffix(r.stdout, "\x1b[?1049l") {
		t.Errorf("without a server: exit code %d, %q", r.code, r.stdout)
	}
}

func TestLagUntilEmpty(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--then", "release", "--max", "1")
	tl.fails(6, "is 1 after 50ms", "group", "lag", "billing", "--until-empty", "--wait", "50ms") // with a backlog
	tl.must("receive", "billing", "orders", "--then", "ack", "--max", "1")
	tl.must("group", "lag", "billing", "--until-empty", "--wait", "50ms")
	tl.fails(2, "", "group", "lag", "billing", "--until-empty", "--watch") // with --watch
}

// Letters can be exported with their bodies, all or one class, and watched; a program gets each
// once.
func TestExportAndWatchLetters(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "1 EUR")
	tl.must("receive", "billing", "orders", "--then", "dead=no such account", "--max", "1")
	tl.must("send", "orders", "2 EUR")
	tl.must("receive", "billing", "orders", "--then", "dead=timeout", "--max", "1")
	type letter struct {
		MessageID string `json:"message_id"`
		Body      string `json:"body_text"`
		Origin    struct{ Reason string }
	}
	if all := lines[letter](t, tl.must("dead-letters", "export", "billing").stdout); len(all) != 2 || all[0].Body+all[1].Body != "1 EUR2 EUR" && all[0].Body+all[1].Body != "2 EUR1 EUR" {
		t.Errorf("the export is %+v", all)
	}
	if text := lines[struct {
		BodyText string `json:"body_text"`
	}](t, tl.must("dead-letters", "list", "billing", "--bodies", "--sort", "died", "-o", "jsonl").stdout); len(text) != 2 || !strings.HasSuffix(text[0].BodyText, " EUR") {
		t.Errorf("the texts are %+v", text)
	}
	classes := lines[struct{ Fingerprint, Reason string }](t, tl.must("dead-letters", "top", "billing", "-o", "jsonl").stdout)
	one := lines[letter](t, tl.must("dead-letters", "export", "billing", "--class", classes[0].Fingerprint).stdout)
	assert.That(t, len(one) == 1 && one[0].Origin.Reason == classes[0].Reason, "class %+v has %+v", classes[0], one)
	tl.must("dead-letters", "list", "billing", "--class", classes[0].Fingerprint, "-o", "name").is(one[0].MessageID + "\n")
	oldest := strings.Fields(tl.must("dead-letters", "list", "billing", "-o", "name").stdout)
	newest := strings.Fields(tl.must("dead-letters", "list", "billing", "--newest", "-o", "name").stdout)
	slices.Reverse(newest)
	assert.That(t, len(oldest) == 2 && slices.Equal(oldest, newest), "the letters are %q, and with --newest in the reverse order %q", oldest, newest)
	for limit, complete := range map[string]bool{"1": false, "2": true, "0": true} {
		tl.must("dead-letters", "list", "billing", "--limit", limit, "-o", "json").prints(fmt.Sprintf(`"complete": %t`, complete))
	}
	tl.must("dead-letters", "purge", "billing", "--class", classes[0].Fingerprint, "--dry-run").noted("would remove 1 dead letter of group billing\n")
	file := filepath.Join(tl.home, "seen")
	r := tl.must("dead-letters", "watch", "billing", "--since", "-1h", "--limit", "2", "--every", "100ms", "--exec", "cat >> "+file+"; exit 3")
	text, err := os.ReadFile(file)
	assert.That(t, err == nil && strings.Count(r.stderr, "the program failed") == 2, "%v, %s", err, r.stderr)
	if got := lines[letter](t, string(text)); len(got) != 2 || got[0].MessageID == got[1].MessageID || len(got[0].Body) == 0 {
		t.Errorf("the program got %+v", got)
	}
	tl.fails(3, "Did you mean billing?", "dead-letters", "watch", "biling") // a wrong name
}

// A watch without --since begins now, in whole seconds: it prints no letter of an earlier second.
func TestWatchBeginsNow(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	die := func(id string) {
		tl.must("send", "orders", "a", "--id", id)
		tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", "1")
	}
	die("earlier")
	for second := time.Now().Unix(); time.Now().Unix() == second; {
		tl.must("dead-letters", "list", "billing") // until the next second
	}
	var stdout, stderr lockedBuffer
	ended := make(chan int, 1)
	wait := tl.start(limited(t), &stdout, &stderr, "dead-letters", "watch", "billing", "--every", "100ms", "--limit", "1", "-o", "name")
	go func() { ended <- wait() }()
	for n := 1; ; n++ { // it may begin after the first ones
		die(fmt.Sprint("later-", n))
		select {
		case code := <-ended:
			if code != 0 || !strings.HasPrefix(stdout.String(), "later-") {
				t.Errorf("exit code %d, it printed %q: %s", code, stdout.String(), stderr.String())
			}
			return
		default:
		}
	}
}

// A watch prints letters that arrive while it runs, and no letter twice.
func TestWatchSeesNewLetters(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "3")
	tl.must("receive", "billing", "orders", "--then", "dead=first", "--max", "1")
	ctx, stop := context.WithCancel(limited(t))
	defer stop()
	second := &watchedBuffer{text: "second", seen: stop}
	begun, begin := context.WithCancel(limited(t))
	out := &watchedBuffer{text: "first", seen: begin}
	both := writers{out, second}
	ended := make(chan int, 1)
	go func() {
		defer begin()
		ended <- run(ctx, []string{"dead-letters", "watch", "billing", "--since", "-1h", "--every", "100ms"}, tl.app(both, &lockedBuffer{}))
	}()
	<-begun.Done()
	tl.must("receive", "billing", "orders", "--then", "dead=second", "--max", "1")
	if code := <-ended; code != 0 || strings.Count(out.String(), "first") != 1 || strings.Count(out.String(), "second") != 1 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// The commands that dead-letters show and top offer look in the topic that was selected.
func TestOfferedCommandsKeepTheTopic(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--id", "x1")
	tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", "1")
	const in = "%DLQ%billing"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"show", "billing", "x1"}, "tidegate dead-letters redrive billing --id x1 --in " + in + " --yes;"},
		{[]string{"top", "billing"}, "tidegate dead-letters show billing x1 --in " + in + "\n"},
		{[]string{"top", "billing"}, " --in " + in + "\n"},
	} {
		tl.must(append(append([]string{"dead-letters"}, c.args...), "--in", in)...).notes(c.want)
	}
}

// A follow finds a message that was stored while a query read, in a queue that the query had
// passed, and one that has an earlier time than a known one, because the clock of the server was
// set back by less than 5 s. It goes on after an outage of the server.
func TestFollowFindsWhatItPassed(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("group", "create", "billing")
	forward := tl.forward()
	start := time.Now().Add(-time.Minute).UTC()
	for _, c := range []struct {
		path, list, id string
		args           []string
	}{
		{"/v1/groups/billing/dead-letters", "dead_letters", "message_id", []string{"dead-letters", "watch", "billing", "--since", "-1h", "--every", "100ms"}},
		{"/v1/topics/orders/messages", "messages", "id", []string{"peek", "orders", "--follow=100ms"}},
	} {
		var queries atomic.Int64
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != c.path {
				forward.ServeHTTP(w, r)
				return
			}
			n := queries.Add(1)
			if n == 2 {
				http.Error(w, "starting", http.StatusServiceUnavailable)
				return
			}
			since, err := time.Parse(time.RFC3339Nano, r.URL.Query().Get("since"))
			if err != nil {
				since = time.Time{}
			}
			items := []any{}
			for _, i := range []struct {
				id            string
				queue, second int
				from          int64 // the first query that finds it
			}{{"first", 0, 0, 1}, {"passed", 0, 10, 3}, {"later", 1, 30, 1}, {"set-back", 0, 26, 5}, {"end", 1, 31, 7}, {"more", 1, 32, 8}} {
				if at := start.Add(time.Duration(i.second) * time.Second); n >= i.from && !at.Before(since) {
					items = append(items, map[string]any{c.id: i.id, "queue": i.queue, "offset": i.second, "stored_at": at})
				}
			}
			assert.NoError(t, json.NewEncoder(w).Encode(map[string]any{c.list: items, "complete": true}))
		}))
		r := tl.bounded("", append(c.args, "--http", front.URL, "--no-retry", "--limit", "5", "-o", "name")...)
		front.Close()
		if r.code != 0 || r.stdout != "first\nlater\npassed\nset-back\nend\n" || strings.Count(r.stderr, "it goes on when a server responds") != 1 {
			t.Errorf("%q: exit code %d, it printed %q and %s", c.args, r.code, r.stdout, r.stderr)
		}
	}
}

// trace --watch goes on with its message after an outage of the server.
func TestWatchedTraceOutlivesAnOutage(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--id", "x1")
	forward := tl.forward()
	var queries atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/topics/orders/messages/") && queries.Add(1) == 2 {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	defer front.Close()
	r := tl.until(3, "\n", "trace", "x1", "--watch=100ms", "--http", front.URL, "--no-retry", "-o", "jsonl")
	assert.That(t, r.code == 0 && strings.Count(r.stdout, `"id":"x1"`) >= 3, "exit code %d\n%s%s", r.code, r.stdout, r.stderr)
}

// top -o jsonl goes on after an outage of the server.
func TestTopOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	forward := tl.forward()
	for path, flags := range map[string][]string{"/v1/topics": nil, "/v1/clients": {"--clients"}} {
		var queries atomic.Int64
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == path && r.URL.Query().Get("view") == "" && queries.Add(1) == 3 {
				http.Error(w, "starting", http.StatusServiceUnavailable)
				return
			}
			forward.ServeHTTP(w, r)
		}))
		r := tl.until(4, "\n", append([]string{"top", "--every", "100ms", "--http", front.URL, "--no-retry", "-o", "jsonl"}, flags...)...)
		if r.code != 0 || strings.Count(r.stdout, "\n") < 4 || queries.Load() < 3 {
			t.Errorf("%s: exit code %d after %d queries\n%s%s", path, r.code, queries.Load(), r.stdout, r.stderr)
		}
		front.Close()
	}
}

// writers write to all of them.
type writers []*watchedBuffer

func (ws writers) Write(p []byte) (int, error) {
	for _, w := range ws {
		if n, err := w.Write(p); err != nil {
			return n, err
		}
	}
	return len(p), nil
}

// check counts new dead letters, prints for Prometheus, and judges the certificate.
func TestCheckForms(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", "1")
	if r := tl.run("check", "dead-letters", "billing", "--dead-letters-crit", "1", "--format", "prometheus"); r.code != 2 ||
		!strings.Contains(r.stdout, `tidegate_check_level{subject="dead-letters",name="billing"} 2`) || !strings.Contains(r.stdout, `tidegate_check_dead_letters{subject="dead-letters",name="billing"} 1`) {
		t.Errorf("new dead letters: exit code %d\n%s", r.code, r.stdout)
	}
	tl.must("check", "dead-letters", "billing", "--dead-letters-crit", "1", "--since", "1h")
	s := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate ends in 2084
	defer s.Close()
	secure := []string{"check", "--http", s.URL, "--tls-skip-verify", "--no-retry", "--format", "json"}
	tl.run(append(secure, "--cert-days-crit", "1000000")...).exits(2).prints("cert-days is ")
	tl.run("check", "--cert-days-warn", "10").exits(3).prints("without TLS")
}

// check judges the age of the oldest message of a group in all its topics, and of a topic.
func TestCheckAge(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("receive", "billing", "orders", "--max", "1", "--wait", "10ms", "--then", "ack")
	forward := tl.forward()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("view") == "":
			forward.ServeHTTP(w, r)
		case r.URL.Path == "/v1/groups":
			_, _ = io.WriteString(w, `{"groups":[{"group":"billing","topic":"orders","oldest_ms":1999},{"group":"billing","topic":"pays","oldest_ms":90999}]}`)
		case r.URL.Path == "/v1/topics":
			_, _ = io.WriteString(w, `{"topics":[{"name":"orders","oldest_ms":7200000}]}`)
		default:
			http.Error(w, "unexpected", http.StatusTeapot)
		}
	}))
	t.Cleanup(proxy.Close)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"group billing", 0, " age=90;;\n"},
		{"group billing --age-warn 91s --age-crit 1h", 0, " age=90;91;3600\n"},
		{"group billing --age-warn 1m30s", 1, "age is 90 s, the bound is 90 s"},
		{"group billing --age-warn 1s --age-crit 1m", 2, "age is 90 s, the bound is 60 s"},
		{"topic orders --age-crit 2h", 2, " age=7200;;7200"},
		{"topic orders --age-crit 2h1s", 0, " age=7200;;7201"},
		{"group billing --age-warn 5", 2, "--age-warn"},
		{"group billing --age-warn 0s", 2, "at least 1s"},
	} {
		r := tl.run(append([]string{"check", "--http", proxy.URL}, strings.Fields(c.args)...)...)
		assert.That(t, r.code == c.code && strings.Contains(r.stdout+r.stderr, c.want), "check %s: exit code %d, want %d with %q: %s%s", c.args, r.code, c.code, c.want, r.stdout, r.stderr)
	}
	tl.must("top", "--by", "age", "--once", "--every", "100ms", "--http", proxy.URL, "-o", "jsonl").prints(`"oldest_ms":1999`)
}

// Commands that wait for new items begin at the time of the server. The clock of this machine can
// be ahead by an hour, and would skip the items of an hour.
func TestFollowBeginsAtTheServersTime(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "before")
	tl.must("receive", "billing", "orders", "--then", "dead", "--max", "1")
	forward := tl.forward()
	forward.ModifyResponse = func(r *http.Response) error {
		r.Header.Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		return nil
	}
	front := httptest.NewServer(forward)
	defer front.Close()
	for _, args := range [][]string{{"peek", "orders", "--from", "last", "--follow=100ms"}, {"dead-letters", "watch", "billing", "--every", "100ms"}} {
		if r := tl.until(1, "\n", append(args, "--http", front.URL, "-o", "jsonl")...); r.code != 0 || strings.Count(r.stdout, "\n") != 1 {
			t.Errorf("%q: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
		}
	}
}
