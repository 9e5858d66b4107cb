package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// top shows the groups with their backlog, as table, as JSON lines and on a terminal.
func TestTop(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders")
	tl.must("send", "orders", "a", "--count", "3")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack")

	r := tl.must("top", "--every", "100ms", "--once", "--columns", "group,topic,backlog")
	if want := "GROUP    TOPIC   BACKLOG\nbilling  orders        2\n"; r.stdout != want {
		t.Errorf("top prints\n%s\nwant\n%s", r.stdout, want)
	}
	type frame struct {
		Subjects []struct {
			Topic   string
			Backlog int64   `json:"backlog_messages"`
			In      float64 `json:"in_rate"`
		}
	}
	fs := lines[frame](t, tl.must("top", "--topics", "--every", "100ms", "--once", "-o", "jsonl", "--match", "o*").stdout)
	assert.That(t, len(fs) == 1 && len(fs[0].Subjects) == 1 && fs[0].Subjects[0].Topic == "orders" && fs[0].Subjects[0].Backlog == 2 && fs[0].Subjects[0].In == 0, "the line is %+v", fs)

	tl.terminal = true
	screen := tl.input("sq", "top")
	if screen.code != 0 || !strings.Contains(screen.stdout, "billing  orders") || !strings.Contains(screen.stdout, "by age, the largest first") {
		t.Errorf("the screen: exit code %d\n%q", screen.code, screen.stdout)
	}
	assert.That(t, strings.HasPrefix(screen.stdout, "\x1b[?1049h") && strings.HasSuffix(screen.stdout, "\x1b[?1049l"), "the terminal is not restored: %q", screen.stdout)
}

func TestTopRejections(t *testing.T) {
	tl := newTool(t)
	for _, args := range [][]string{{"--by", "size"}, {"--match", "[a"}, {"--every", "1ms"}} {
		tl.run(append([]string{"top"}, args...)...).exits(2).is("")
	}
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	tl.fails(2, "mqadmin statsAll", "top", "--context", "rmq") // on RocketMQ
}

// group list has a row for each group and topic, and the flags select rows. A group without a topic
// is a row too.
func TestGroupList(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("topic", "create", "pays")
	tl.must("group", "create", "fresh")
	tl.must("send", "orders", "a", "--count", "3")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=no such account")
	tl.must("receive", "billing", "pays", "--max", "1", "--wait", "10ms", "--then", "ack")
	tl.must("receive", "audit", "orders", "--max", "1", "--then", "retry=1m")
	for _, c := range []struct{ flags, want string }{
		{"", "audit orders 3\nbilling orders 2\nbilling pays 0\nfresh - 0\n"},
		{"--match bill*", "billing orders 2\nbilling pays 0\n"},
		{"--topic pays", "billing pays 0\n"},
		{"--lagging 1 --sort -group", "billing orders 2\naudit orders 3\n"},
		{"--with-dead", "billing orders 2\n"},
		{"--state retry", "audit orders 3\n"},
		{"--state dead --with-dead --lagging 2", "billing orders 2\n"},
		{"--state parked", ""},
		{"--stuck 1h", ""},
		{"--limit 1 --sort drains", "billing pays 0\n"},
	} {
		r := tl.must(append([]string{"group", "list", "--no-headers", "--columns", "group,topic,backlog"}, strings.Fields(c.flags)...)...)
		var got strings.Builder
		for line := range strings.Lines(r.stdout) {
			got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
		assert.That(t, got.String() == c.want, "group list %s prints\n%s\nwant\n%s", c.flags, r.stdout, c.want)
		assert.That(t, c.want != "" || strings.Contains(r.stderr, "no consumer groups that the flags select"), "group list %s: %q", c.flags, r.stderr)
	}
	all := document[struct {
		Groups []struct {
			Group string
			Hour  int `json:"dead_letters_hour"`
		}
	}](t, tl.must("group", "list", "--with-dead", "-o", "json").stdout)
	assert.That(t, len(all.Groups) == 1 && all.Groups[0].Group == "billing" && all.Groups[0].Hour == 1, "the JSON is %+v", all)
	for _, flag := range []string{"--state=slow", "--match=[a", "--lagging=-1", "--stuck=-1s"} {
		tl.run("group", "list", flag).exits(2).is("")
	}
}

// topic set does not undo the change that another operator makes after it has read the settings.
func TestTopicSetAfterAnotherChange(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	broker := assert.Value(url.Parse(tl.http))(t)
	other := *tl
	var once sync.Once
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		if r.In.Method == http.MethodPut {
			once.Do(func() { other.must("topic", "set", "orders", "max_backlog.messages=7") })
		}
		r.SetURL(broker)
	}})
	t.Cleanup(proxy.Close)
	tl.fails(1, "revision", "topic", "set", "orders", "retention.time=1h", "--http", proxy.URL) // a change of settings that changed
	tl.must("topic", "set", "orders", "retention.time=1h", "--http", proxy.URL)
	type topic struct {
		MaxBacklog struct{ Messages int } `json:"max_backlog"`
		Retention  struct{ Time string }
	}
	if got := document[topic](t, tl.must("topic", "show", "orders", "-o", "json").stdout); got.MaxBacklog.Messages != 7 || got.Retention.Time != "1h0m0s" {
		t.Errorf("the topic is %+v, want both changes", got)
	}
}

type peeked struct {
	Messages []struct {
		ID, Tag string
		Body    string `json:"body_text"`
		Keys    []string
	}
	Scanned  int64
	Left     int64
	Complete bool
	Next     string
}

func document[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// peek prints messages in the order of the topic and consumes none; the note has the command that
// continues.
func TestPeek(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=3")
	for _, body := range []string{"one", "two\nlines", "three\x1b[2J"} {
		tl.must("send", "orders", body, "--tag", "t"+body[:1], "--key", body[:2], "-p", "shop=5")
	}
	r := tl.must("peek", "orders", "--columns", "tag,keys,size,text")
	if want := "TAG  KEYS  SIZE  TEXT\nto   on       3  one\ntt   tw       9  two…\ntt   th       9  three\\x1b[2J\n"; r.stdout != want {
		t.Errorf("peek prints\n%s\nwant\n%s", r.stdout, want)
	}
	first := document[peeked](t, tl.must("peek", "orders", "--limit", "2", "-o", "json").stdout)
	assert.That(t, len(first.Messages) == 2 && !first.Complete && first.Left == 1 && first.Messages[1].Body == "two\nlines", "the first two: %+v", first)
	rest := document[peeked](t, tl.must("peek", "orders", "--after", first.Next, "-o", "json").stdout)
	assert.That(t, len(rest.Messages) == 1 && rest.Complete && rest.Messages[0].Keys[0] == "th", "the rest: %+v", rest)
	tl.must("peek", "orders", "--limit", "1", "--from", "last", "--columns", "text").prints("three").notes("about 2 left", "tidegate peek orders")
	tl.must("peek", "orders", "--bodies", "--key", "tw").prints("  shop: 5\n    two\n    lines\n")
	if got := lines[received](t, tl.must("receive", "billing", "orders", "--max", "3", "--then", "ack", "-o", "jsonl").stdout); len(got) != 3 || got[0].Attempt != 1 {
		t.Errorf("the messages after peek: %+v", got)
	}
	tl.fails(3, "Did you mean orders?", "peek", "order") // a topic that does not exist
}

func TestFind(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders")
	id := strings.TrimSpace(tl.must("send", "orders", "no such account 17", "--key", "4711", "-o", "name").stdout)
	tl.must("send", "orders", "other", "--count", "20")
	for _, args := range [][]string{{id}, {"--key", "4711"}, {"--contains", "account 17"}, {id, "--since", "-1h"}} {
		r := tl.must(append([]string{"find", "orders", "-o", "name"}, args...)...)
		assert.That(t, strings.TrimSpace(r.stdout) == id, "%v finds %q, want %s", args, r.stdout, id)
	}
	tl.run("find", "orders", "--key", "4712").exits(3).is("").notes("looked at 21 messages")
	if r := tl.run("find", "orders", "--key", "4712", "--scan", "1", "-o", "json"); r.code != 3 && r.code != 7 {
		t.Errorf("a bounded search: exit code %d, %q", r.code, r.stderr)
	}
	for _, args := range [][]string{{"orders"}, {"orders", "--key", "1", "--since", "soon"}, {"orders", "-p", "colour"}, {"orders", "--tag", "x", "--offset", "1"}} {
		tl.fails(2, "", append([]string{"find"}, args...)...)
	}
}

// trace follows a message: with its retry, its dead letter, and without knowing its topic.
func TestTrace(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders")
	tl.must("topic", "create", "pays")
	tl.must("send", "pays", "other")
	tl.must("group", "create", "billing", "max_attempts=2", "retry=1h")
	id := strings.TrimSpace(tl.must("send", "orders", "a", "-o", "name").stdout)
	expect := func(words string, args ...string) {
		t.Helper()
		tl.must(append([]string{"trace", id}, args...)...).prints("message "+id+" in topic orders", words)
	}
	expect("no group receives from the topic")
	expect("its body has 1 B: a\n")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "retry=1h")
	expect("billing retries it at ", "--topic", "orders")
	expect(", because: by tidegate receive\n    ")
	expect(" failed: by tidegate receive; delivered again after 1h 00m\n")
	expect("(attempt 2 of 2)", "--group", "billing", "--topic", "orders")
	traced := document[struct {
		Topics []struct {
			Topic    string
			Messages []struct {
				ID     string
				Body   string `json:"body_text"`
				Groups []struct{ Group, State string }
			}
		}
	}](t, tl.must("trace", id, "-o", "json").stdout)
	if len(traced.Topics) != 1 || traced.Topics[0].Topic != "orders" || len(traced.Topics[0].Messages) != 1 || traced.Topics[0].Messages[0].Groups[0].State != "waiting_retry" ||
		traced.Topics[0].Messages[0].Body != "a" {
		t.Errorf("the trace is %+v", traced)
	}
	tl.run("trace", "01"+strings.Repeat("0", 32)).exits(3).is("")
	for _, c := range []struct {
		args []string
		code int
	}{{[]string{id, "--topic", "none"}, 3}, {[]string{id, "--topic", "orders", "--group", "none"}, 3}, {[]string{id, "--since", "soon"}, 2}} {
		tl.fails(c.code, "", append([]string{"trace"}, c.args...)...)
	}
}

// A trace keeps the findings of all pages of a topic. It reports a missing message as such only if
// it has looked at all topics completely.
func TestTraceReadsAllPages(t *testing.T) {
	tl := newTool(t)
	for _, topic := range []string{"a", "b"} {
		tl.must("topic", "create", topic)
		tl.must("send", topic, "x")
	}
	forward := tl.forward()
	const found, nothing = `{"id":"m","body_text":"x","stored_at":"2026-11-24T00:00:00Z"}`, ""
	page := func(messages, next string) string {
		return fmt.Sprintf(`{"messages":[%s],"scanned":5,"complete":%t,"next":%q}`, messages, next == "", next)
	}
	for name, c := range map[string]struct {
		a, a2, b string // the pages
		code     int
		topics   []string
	}{
		"on the first page":    {page(found, "2"), page(nothing, ""), page(nothing, ""), 0, []string{"a"}},
		"on the last page":     {page(nothing, "2"), page(found, ""), page(nothing, ""), 0, []string{"a"}},
		"nowhere":              {page(nothing, "2"), page(nothing, ""), page(nothing, ""), 3, nil},
		"not so far, in a":     {page(nothing, "2"), page(nothing, "3"), page(nothing, ""), 7, nil},
		"not so far, in b":     {page(nothing, "2"), page(nothing, ""), page(nothing, "2"), 7, nil},
		"in both, a not whole": {page(found, "2"), page(nothing, "3"), page(found, ""), 0, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var text string
				switch {
				case r.URL.Path == "/v1/topics/a/messages/m" && r.URL.Query().Get("after") == "":
					text = c.a
				case r.URL.Path == "/v1/topics/a/messages/m":
					text = c.a2
				case r.URL.Path == "/v1/topics/b/messages/m":
					text = c.b
				default:
					forward.ServeHTTP(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				assert.NoError(t, assert.Err(io.WriteString(w, text)))
			}))
			defer front.Close()
			r := tl.run("trace", "m", "--http", front.URL, "--scan", "10", "-o", "json")
			var got struct {
				Topics []struct {
					Topic    string
					Messages []struct{ ID string }
				}
			}
			if r.code == 0 {
				decode(t, r.stdout, &got)
			}
			var topics []string
			for _, f := range got.Topics {
				if topics = append(topics, f.Topic); len(f.Messages) != 1 || f.Messages[0].ID != "m" {
					t.Errorf("in %s there is %+v", f.Topic, f.Messages)
				}
			}
			assert.That(t, r.code == c.code && slices.Equal(topics, c.topics), "exit code %d and %q, want %d and %q: %s", r.code, topics, c.code, c.topics, r.stderr)
		})
	}
}

func TestMetricsCommand(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders")
	tl.must("send", "orders", "x")
	tl.must("metrics", "--match", `topic_stored_messages.*"orders"`, "--no-headers").is("tidegate_topic_stored_messages{topic=\"orders\"}  1\n")
	sums := document[struct {
		Metrics []struct{ Series, Value string }
	}](t, tl.must("metrics", "--totals", "--match", "topic_stored_messages", "-o", "json").stdout)
	assert.That(t, len(sums.Metrics) == 1 && sums.Metrics[0].Series == `tidegate_topic_stored_messages{topic="*"}` && sums.Metrics[0].Value == "1", "the sums are %+v", sums)
	tl.fails(2, "", "metrics", "--match", "(") // an invalid expression
}

// peek --follow prints the stored and the new messages, each once.
func TestPeekFollow(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=3")
	tl.must("send", "orders", "a %n", "--template", "--count", "4", "--tag", "t%n")
	ctx, stop := context.WithCancel(limited(t))
	defer stop()
	follow := func(seen string, then func(), args ...string) string {
		t.Helper()
		out := &watchedBuffer{text: seen, seen: then}
		args = append([]string{"peek", "orders", "--follow=100ms"}, args...)
		if code := run(ctx, args, tl.app(out, io.Discard)); code != 0 {
			t.Errorf("%q: exit code %d", args, code)
		}
		return out.String()
	}
	got := follow("a 4", func() { tl.must("send", "orders", "b %n", "--template", "--count", "3", "--tag", "t") }, "--limit", "7", "--columns", "text")
	var texts []string
	for line := range strings.Lines(got) {
		fields := strings.Fields(line)
		texts = append(texts, strings.Join(fields[len(fields)-2:], " "))
	}
	slices.Sort(texts)
	if want := []string{"a 1", "a 2", "a 3", "a 4", "b 1", "b 2", "b 3"}; !slices.Equal(texts, want) {
		t.Errorf("it printed %q, want %q", texts, want)
	}
	if got := follow("", func() {}, "--tag", "t", "-o", "name", "--limit", "3"); strings.Count(got, "\n") != 3 {
		t.Errorf("the names of a tag are %q", got)
	}
	tl.must("topic", "create", "pays")
	tl.must("send", "pays", "x", "--tag", "paid", "--key", "4711")
	tl.must("send", "pays", "x")
	columns := strings.Split(strings.TrimSpace(tl.bounded("", "peek", "pays", "--follow=100ms", "--limit", "2").stdout), "\n")
	assert.That(t, len(columns) == 2 && len(strings.Fields(columns[0])) == len(strings.Fields(columns[1])), "a message without a tag and a key shifts the columns: %q", columns)
	for _, args := range [][]string{{"--follow=1ms"}, {"--follow", "--to", "-1s"}, {"--follow", "--after", "x"}} {
		tl.fails(2, "", append([]string{"peek", "orders"}, args...)...)
	}
}

// peek --delayed prints the messages that wait for their delivery time, and only these.
func TestPeekDelayed(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "reminders", "type=DELAY")
	due := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	tl.must("send", "reminders", "r%n", "--template", "--count", "3", "--at", due.Format(time.RFC3339), "--key", "k")
	if got := squeezed(tl.must("peek", "reminders", "--delayed", "--no-headers", "--columns", "deliver,keys,text", "--sort", "text").stdout); got != strings.NewReplacer("AT", due.Format(time.RFC3339)).Replace("AT k r1\nAT k r2\nAT k r3\n") {
		t.Errorf("peek --delayed prints %q", got)
	}
	first := document[peeked](t, tl.must("peek", "reminders", "--delayed", "--limit", "2", "-o", "json").stdout)
	rest := document[peeked](t, tl.must("peek", "reminders", "--delayed", "--after", first.Next, "-o", "json").stdout)
	assert.That(t, len(first.Messages) == 2 && !first.Complete && first.Left == 1 && len(rest.Messages) == 1 && rest.Complete, "pages: %+v, %+v", first, rest)
	assert.Equal(t, "delayed messages are in the queues", tl.must("peek", "reminders").stdout, "")
	if r := tl.must("peek", "reminders", "--delayed", "--follow=100ms", "--limit", "3", "-o", "name"); strings.Count(r.stdout, "\n") != 3 {
		t.Errorf("--follow prints %q", r.stdout)
	}
	tl.must("peek", "reminders", "--delayed", "--bodies").prints("deliver at " + due.Format(time.RFC3339))
	for _, flags := range [][]string{{"--from", "last"}, {"--queue", "0"}} {
		tl.fails(2, "", append([]string{"peek", "reminders", "--delayed"}, flags...)...)
	}
	if r := tl.run("api", "GET", "/v1/topics/reminders/messages?state=half"); r.code != 2 && r.code != 1 || !strings.Contains(r.stderr, "give delayed") {
		t.Errorf("another state: exit code %d, %s", r.code, r.stderr)
	}
}

// A message group behind a message that fails without end, or that is parked, is listed under its
// group. Each offered command finds it, with the reason, and READY counts what a receive gets.
func TestBlockedMessageGroupIsFound(t *testing.T) {
	for state, then := range map[string]string{"blocked": "block", "parked": "park"} {
		t.Run(state, func(t *testing.T) {
			tl := newTool(t)
			tl.must("topic", "create", "pays", "type=FIFO", "queues=1")
			tl.must("group", "create", "ledger", "fifo=true", "max_attempts=1", "on_exhausted="+then, "fifo_retry_interval=1h")
			tl.must("send", "pays", "x", "--count", "17", "--message-group", "account-7")
			tl.must("receive", "ledger", "pays", "--max", "1", "--then", "dead=no such account")
			type progress struct {
				Ready, Parked, Blocked, Inflight int
				Why                              string
			}
			shown := document[struct{ Topics []progress }](t, tl.must("group", "show", "ledger", "-o", "json").stdout).Topics[0]
			if want := map[string]progress{"blocked": {Blocked: 16, Why: "blocked"}, "parked": {Parked: 17, Why: "parked"}}[state]; shown != want {
				t.Errorf("the group is %+v, want %+v", shown, want)
			}
			tl.run("receive", "ledger", "pays", "--max", "1", "--wait", "10ms").is("")
			r := tl.must("status")
			next := "tidegate parked list ledger"
			assert.That(t, strings.Contains(r.stdout, "ledger in pays") && strings.Contains(r.stdout, next), "status prints\n%s", r.stdout)
			if r = tl.must("group", "show", "ledger"); !strings.Contains(r.stdout, next) || !strings.Contains(r.stdout, map[string]string{"blocked": "Blocked by a message that is retried", "parked": "Parked after the last attempt"}[state]) {
				t.Errorf("group show prints\n%s", r.stdout)
			}
			tl.must("doctor", "--topic", "pays", "--group", "ledger").prints(next, map[string]string{"blocked": "Blocked by a message that is retried", "parked": "Parked after the last attempt"}[state])
			if r = tl.must("group", "list", "--state", state); !strings.Contains(r.stdout, next) {
				t.Errorf("group list prints\n%s", r.stdout)
			}
			r = tl.must(strings.Fields(next)[1:]...)
			for _, want := range []string{"account-7", "no such account", state, "17"} {
				assert.That(t, strings.Contains(r.stdout, want), "%s prints\n%s\nwant %s", next, r.stdout, want)
			}
			if r = tl.must("parked", "list", "ledger", "--state", map[string]string{"blocked": "parked", "parked": "blocked"}[state]); r.stdout != "" {
				t.Errorf("the other state has\n%s", r.stdout)
			}
			for bound, code := range map[string]int{"17": 2, "18": 0} { // with the failed message
				if r = tl.run("check", "group", "ledger", "--"+state+"-crit", bound); r.code != code {
					t.Errorf("check with a bound of %s ends with %d, want %d: %s", bound, r.code, code, r.stdout)
				}
			}
		})
	}
}

// A documented command prints JSON objects with a schema of the HTTP API.
type documented struct {
	args   string // -o jsonl: an object for each row
	schema string
	beside string // further keys, which are no part of the API
}

// documents are the commands in the order in which the test runs them.
var documents = []documented{
	{args: "topic create pays type=FIFO -o json", schema: "Topic"},
	{args: "topic set pays retention.time=1h -o json", schema: "Topic"},
	{args: "topic show orders -o json", schema: "Topic"},
	{args: "topic purge pays --dry-run -o json", schema: "Purged"},
	{args: "topic purge pays --yes -o jsonl", schema: "Purged"},
	{args: "topic show orders --queues -o json", schema: "Topic", beside: "queue_states"},
	{args: "topic list -o jsonl", schema: "TopicSummary"},
	{args: "topic lite sessions -o json", schema: "LiteTopicPage"},
	{args: "topic lite sessions --group agents -o jsonl", schema: "LiteTopic"},
	{args: "group create ledger fifo=true -o json", schema: "Group"},
	{args: "group set ledger max_attempts=3 -o json", schema: "Group"},
	{args: "group show billing -o json", schema: "Group"},
	{args: "group show billing --queues --clients --schedule -o json", schema: "Group", beside: "queue_states schedules clients"},
	{args: "group list -o jsonl", schema: "GroupSummary"},
	{args: "group rewind billing orders --to latest --dry-run -o jsonl", schema: "QueueRewind"},
	{args: "status -o json", schema: "Overview"},
	{args: "clients list -o json", schema: "ClientPage"},
	{args: "clients list -o jsonl", schema: "Client"},
	{args: "audit -o json", schema: "AuditPage"},
	{args: "audit -o jsonl", schema: "AuditRecord"},
	{args: "peek orders -o json", schema: "MessagePage"},
	{args: "peek orders -o jsonl", schema: "StoredMessage"},
	{args: "peek orders --follow --limit 1 -o jsonl", schema: "StoredMessage"},
	{args: "peek reminders --delayed -o jsonl", schema: "StoredMessage"},
	{args: "find orders --key 4711 -o json", schema: "MessagePage"},
	{args: "find orders --key 4711 -o jsonl", schema: "StoredMessage"},
	{args: "trace DEAD --topic orders -o json", schema: "Trace", beside: "topic"}, // in topics
	{args: "dead-letters top billing -o json", schema: "DeadLetterClassPage"},
	{args: "dead-letters top billing -o jsonl", schema: "DeadLetterClass", beside: "sample"},
	{args: "dead-letters list billing --bodies -o json", schema: "DeadLetterPage", beside: "complete"},
	{args: "dead-letters list billing -o jsonl", schema: "DeadLetter"},
	{args: "dead-letters show billing DEAD -o json", schema: "DeadLetter"},
	{args: "dead-letters export billing", schema: "DeadLetter"},
	{args: "dead-letters watch billing --since -1h --limit 1 -o jsonl", schema: "DeadLetter"},
	{args: "parked list parking -o json", schema: "ParkedPage"},
	{args: "parked list parking -o jsonl", schema: "ParkedGroup"},
	{args: "limits set max_backlog.messages=3 --yes -o json", schema: "ThrottleState"},
	{args: "limits show -o json", schema: "ThrottleState"},
	{args: "limits show --all -o jsonl", schema: "LimitState"},
	{args: "limits set max_backlog.messages=0 --yes -o json", schema: "ThrottleState"},
	{args: "address set orders.# max-delivery-attempts=4 -o json", schema: "AddressSetting"},
	{args: "address show orders.# -o json", schema: "AddressSetting"},
	{args: "address test orders -o json", schema: "TopicAddressSettings"},
	{args: "address list -o jsonl", schema: "AddressSetting"},
	{args: "receive billing orders --then release -o jsonl", schema: "Delivery"},
	{args: "send orders x -o json", schema: "SendResult", beside: "attempts"},
	{args: "recall reminders HANDLE -o json", schema: "RecallResult"},
	{args: "parked redrive parking --yes -o json", schema: "ParkedRedrive"},
	{args: "dead-letters purge billing --dry-run -o json", schema: "DeadLetterPurge"},
	{args: "dead-letters purge billing --yes -o json", schema: "DeadLetterPurge"},
}

// own are the commands whose JSON is not of the HTTP API: the result of a job, of several requests,
// or of none.
var own = []string{
	"address delete", "api", "apply", "bench compare", "bench e2e", "bench receive", "bench send", "check", "console", "context add",
	"context list", "context remove", "context show", "context test", "context use", "dead-letters redrive", "doctor", "export", "group delete",
	"group lag", "metrics", "move", "retry preview", "topic delete", "topic delete-lite", "top", "version",
}

// Each command that prints a subject of the HTTP API prints it with the schema of openapi.yaml,
// and with no further keys but those of the table.
func TestJSONIsThatOfTheAPI(t *testing.T) {
	t.Parallel()
	doc := assert.Value(openapi3.NewLoader().LoadFromFile("../../broker/server/openapi.yaml"))(t)
	tl := newTool(t, "--topic", "orders")
	tl.must("topic", "create", "reminders", "type=DELAY")
	tl.must("topic", "create", "parks", "type=FIFO")
	tl.must("topic", "create", "sessions", "type=LITE")
	tl.must("receive", "agents", "sessions", "--lite", "session-16", "--then", "ack", "--wait", "10ms")
	tl.must("send", "sessions", "hello", "--lite-topic", "session-17")
	tl.must("group", "create", "parking", "fifo=true", "on_exhausted=park", "max_attempts=1")
	tl.must("send", "parks", "no money", "--message-group", "account-7")
	tl.must("receive", "parking", "parks", "--max", "1", "--then", "retry")
	tl.must("send", "orders", "10 EUR", "--key", "4711", "--tag", "t", "-p", "shop=5")
	dead := strings.TrimSpace(tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=no such account", "-o", "name").stdout)
	tl.must("send", "orders", "20 EUR", "--key", "4711", "--tag", "t", "-p", "shop=5")
	handle := document[struct {
		Handle string `json:"recall_handle"`
	}](t, tl.must("send", "reminders", "later", "--in", "10m", "-o", "json").stdout).Handle
	tl.consumer("watching", "reminders")
	names := strings.NewReplacer("DEAD", dead, "HANDLE", handle)
	for _, c := range documents {
		args := strings.Fields(names.Replace(c.args))
		r := tl.must(args...)
		objects := []string{r.stdout}
		if strings.HasSuffix(c.args, "jsonl") || args[1] == "export" {
			objects = slices.Collect(strings.Lines(r.stdout))
		}
		assert.That(t, len(objects) != 0, "%s: no row", c.args)
		for _, text := range objects {
			for _, fault := range faults(doc.Components.Schemas[c.schema], text, c) {
				t.Errorf("tidegate %s: %s: %s", c.args, fault, text)
			}
		}
	}
	for _, c := range leaves(serve.Root(&cli.App{Env: func(string) string { return "" }})) {
		name := strings.Join(words(c), " ")
		listed := slices.Contains(own, name)
		if tested := slices.ContainsFunc(documents, func(d documented) bool { return strings.HasPrefix(d.args+" ", name+" ") }); tested == listed {
			t.Errorf("tidegate %s is in both lists of this test, or in none", name)
		}
	}
}

// consumer connects a consumer until the end of the test: the commands forget their own clients.
func (tl *tool) consumer(group, topic string) {
	tl.t.Helper()
	client := assert.Value(rocketmq.New(tl.grpc, rocketmq.Options{}))(tl.t)
	tl.t.Cleanup(func() { client.Close() })
	c := assert.Value(consumer.NewSimple(client, consumer.Subscription{Group: group, Topic: topic}, consumer.SimpleOptions{LongPolling: time.Millisecond}))(tl.t)
	if ds, err := c.Receive(tl.t.Context(), 1); len(ds) > 0 || err != nil {
		tl.t.Fatalf("received %d messages, error %v", len(ds), err)
	}
}

// faults returns how a JSON object differs from a schema.
func faults(schema *openapi3.SchemaRef, text string, c documented) (all []string) {
	if schema == nil {
		return []string{"openapi.yaml has no schema " + c.schema}
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return []string{err.Error()}
	}
	objects := []map[string]any{object}
	switch list, _ := object["topics"].([]any); {
	case c.schema == "Trace":
		objects = nil
		for _, topic := range list {
			objects = append(objects, topic.(map[string]any))
		}
	case c.schema == "DeadLetterClassPage":
		for _, class := range object["classes"].([]any) {
			delete(class.(map[string]any), "sample") // tested by rows
		}
	}
	for _, o := range objects {
		for key := range strings.FieldsSeq(c.beside) {
			if _, ok := o[key]; !ok {
				all = append(all, "there is no "+key)
			}
			delete(o, key)
		}
		if err := schema.Value.VisitJSON(o, openapi3.MultiErrors()); err != nil {
			all = append(all, err.Error())
		}
	}
	if len(objects) == 0 {
		all = append(all, "it is empty")
	}
	return all
}

// A site is a broker with the names and numbers of a real one: a topic with its group, a FIFO topic
// with a group that parks, long message IDs, and several problems at once.
type site struct {
	*tool
	subjects [4]string
	id       string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{newTool(t), [4]string{"orders.invoices.created.v2.eu1", "billing-worker-europe-west-prod", "payments.transfers.outgoing.v1", "ledger-worker-europe-west-prod1"},
		"01a2b3c4d5e6f708192a3b4c5d6e7f8091a2-orders-invoice-00004711"}
	orders, billing, payments, ledger := s.subjects[0], s.subjects[1], s.subjects[2], s.subjects[3]
	s.must("topic", "create", orders)
	s.must("topic", "create", payments, "type=FIFO")
	s.must("topic", "create", "reminders.customers.overdue.v3", "type=DELAY")
	s.must("topic", "create", liteTopics, "type=LITE")
	s.must("receive", "agents-worker-europe-west-prod1", liteTopics, "--lite", "session-of-customer-000081512-order-0000471100", "--then", "ack", "--wait", "10ms")
	s.must("send", liteTopics, "hello", "--lite-topic", "session-of-customer-000081512-order-0000471100")
	s.must("group", "create", billing)
	s.must("group", "create", ledger, "fifo=true", "on_exhausted=park", "max_attempts=1")
	s.must("group", "create", "shipping-worker-europe-west-pr1", "fifo=true", "on_exhausted=block", "max_attempts=1")
	s.must("address", "set", "orders.#", "max-delivery-attempts=4")
	s.must("send", orders, "no such account in the ledger of the year 2026, please look at it", "--id", s.id, "--key", "order-0000471100, customer-000081512", "--tag", "invoice-created", "--count", "1")
	s.must("receive", billing, orders, "--then", "dead=the ledger has no such account: 12ab34cd-0000-4711-8151-0123456789ab (IllegalStateException)", "--max", "1")
	s.must("send", orders, `{"order":4711,"customer":"0815","lines":[{"article":"a-1","price":12.5},{"article":"a-2","price":99}]}`, "--count", "12344", "--key", "order-4711")
	s.must("receive", billing, orders, "--then", "retry", "--max", "3")
	for _, account := range []string{"account-de-0000000000004711", "account-de-0000000000004712"} {
		for range 2 {
			s.must("send", payments, "no money", "--message-group", account)
		}
	}
	s.must("receive", ledger, payments, "--max", "2", "--then", "retry")
	s.must("receive", "shipping-worker-europe-west-pr1", payments, "--max", "1", "--then", "retry")
	s.must("send", "reminders.customers.overdue.v3", "later", "--in", "10m")
	s.must("context", "add", "target", "--grpc", s.grpc, "--http", s.http)
	s.must("context", "add", "production-europe-west-message-broker", "--grpc", "mq-broker-1.production.europe.example:8081", "--http", "https://mq-broker-1.production.europe.example:8082", "--access-key", "billing-operator")
	idle, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go run(idle, []string{"receive", "idle-worker-europe-west-prod-01", "reminders.customers.overdue.v3", "--then", "ack", "--follow"}, s.app(io.Discard, io.Discard))
	for s.must("clients", "list", "-o", "name").stdout == "" {
		runtime.Gosched()
	}
	return s
}

// liteTopics is a topic of a site with lite topics.
const liteTopics = "sessions.agents.customers.v1"

// args are the words of a command, which changes nothing that others need.
func (s *site) args(c *cobra.Command) []string {
	name := strings.Join(words(c), " ")
	args := resultArgs(s.tool, c, s.subjects, s.id)
	if c.Flags().Lookup("timeout") == nil {
		args = args[:slices.Index(args, "--timeout")]
	}
	switch name {
	case "bench send", "bench receive", "bench e2e":
		args = []string{"bench", c.Name(), "--duration", "100ms", "--warmup", "0s", "--rounds", "1"}
		if name == "bench receive" {
			args = append(args, "--messages", "2000")
		}
	case "topic lite", "topic delete-lite":
		args[slices.Index(args, s.subjects[0])] = liteTopics
		if i := slices.Index(args, "x1"); i >= 0 {
			args[i] = "session-of-customer-000081512-order-0000471100"
			args = append(args, "--dry-run")
		}
	case "address set":
		args = append(args, "max-delivery-attempts=4")
	case "topic set":
		args[slices.Index(args, "queues=5")] = "queues=9"
	case "move":
		args = append(args, "--group", s.subjects[1], "--dry-run", "--to-topic", s.subjects[2])
	}
	return args
}

// each calls show for each command that prints a result for people, with its output there. It
// returns the names of the commands with a result.
func (s *site) each(t *testing.T, terminal bool, flags []string, show func(name string, args []string, r result)) (seen []string) {
	t.Helper()
	for _, c := range leaves(serve.Root(&cli.App{Env: os.Getenv})) {
		name := strings.Join(words(c), " ")
		if slices.Contains([]string{"console", "bench compare", "context use", "context remove", "context add", "dead-letters export", "api"}, name) {
			continue // without a text for people
		}
		s.terminal = false
		args := append(s.args(c), flags...)
		s.terminal = terminal
		r := s.bounded("topics: {x1: {}}", args...)
		if strings.TrimSpace(r.stdout) != "" {
			seen = append(seen, name)
		}
		show(name, args, r)
	}
	s.terminal = false
	return seen
}

// unbroken are lines that a terminal wraps, because a person copies from them: a command, and a
// word that alone is longer than the terminal.
var unbroken = regexp.MustCompile(`^ *(tidegate [a-z].*|\S+)$`)

// On a terminal of 80 columns no command prints a longer line, and the names that commands take as
// arguments, those of -o name, are whole.
func TestTerminalOf80Columns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	useless := []string{"address delete", "group create", "topic create", "limits set", "recall"}     // without a subject
	prose := []string{"trace", "doctor", "context test", "dead-letters show", "context show", "send"} // sentences and data, of which lines are copied
	for _, flags := range [][]string{nil, {"-o", "wide"}} {
		seen := s.each(t, true, flags, func(name string, args []string, r result) {
			assert.That(t, r.code == 0 || r.stdout != "" || slices.Contains(useless, name), "%s ends with %d: %s", strings.Join(args, " "), r.code, r.stderr)
			for line := range strings.Lines(r.stdout) {
				line = strings.TrimSuffix(line, "\n")
				if output.Width(line) > 80 && !unbroken.MatchString(line) && !slices.Contains(prose, name) {
					t.Errorf("%s prints a line of %d columns:\n%s", strings.Join(args, " "), output.Width(line), r.stdout[:min(len(r.stdout), 4000)])
					break
				}
			}
			if slices.Contains(prose, name) || strings.HasPrefix(name, "bench") || strings.HasSuffix(name, "redrive") || name == "receive" || name == "metrics" || name == "move" { // they are not the same the next time
				return
			}
			names := s.run(append(slices.Clone(args), "-o", "name")...)
			for id := range strings.Lines(names.stdout) {
				if id = strings.Trim(id, "'\n"); names.code == 0 && r.stdout != "" && !strings.Contains(r.stdout, id) {
					t.Errorf("%s cuts %s:\n%s", strings.Join(args, " "), id, r.stdout)
				}
			}
		})
		assert.That(t, len(seen) >= 30, "only %d commands print a result, the test does not see the others: %q", len(seen), seen)
	}
}

// What a program reads has no numbers with spaces between their digits.
func TestPipedNumbersArePlain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	grouped := regexp.MustCompile(`(^|[^0-9A-Za-z.:-])[0-9]{1,3}[ \x{00a0}\x{2007}\x{2009}\x{202f}][0-9]{3}([^0-9]|$)`)
	plain := ""
	s.each(t, false, nil, func(_ string, args []string, r result) {
		for stream, text := range map[string]string{"stdout": r.stdout, "stderr": r.stderr} {
			if found := grouped.FindString(text); found != "" {
				t.Errorf("%s: %s has %q:\n%s", strings.Join(args, " "), stream, found, text)
			}
		}
		plain += r.stdout
	})
	assert.That(t, strings.Contains(plain, "12344"), "no output has the large number, the test does not see it")
	s.terminal = true
	for _, args := range [][]string{{"status"}, {"topic", "list"}, {"topic", "show", s.subjects[0]}, {"group", "show", s.subjects[1]}} {
		if out := s.bounded("", args...).stdout; !regexp.MustCompile(`12 3\d{2} `).MatchString(out) {
			t.Errorf("on a terminal %q prints no groups of digits:\n%s", args, out)
		}
	}
}
