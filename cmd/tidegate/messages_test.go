package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// lines decodes JSON lines.
func lines[T any](t *testing.T, text string) []T {
	t.Helper()
	var out []T
	for line := range strings.Lines(text) {
		var v T
		assert.Must(t, json.Unmarshal([]byte(line), &v), "%q", line)
		out = append(out, v)
	}
	return out
}

type received struct {
	ID           string            `json:"id"`
	BodyText     string            `json:"body_text"`
	Body         []byte            `json:"body"`
	Tag          string            `json:"tag"`
	Keys         []string          `json:"keys"`
	Properties   map[string]string `json:"properties"`
	MessageGroup string            `json:"message_group"`
	Priority     int               `json:"priority"`
	LiteTopic    string            `json:"lite_topic"`
	Attempt      int               `json:"attempt"`
}

// stored returns the number of messages in a topic.
func (tl *tool) stored(topic string) int {
	tl.t.Helper()
	var shown struct {
		Stored int `json:"stored_messages"`
	}
	assert.Must(tl.t, json.Unmarshal([]byte(tl.must("topic", "show", topic, "-o", "json").stdout), &shown))
	return shown.Stored
}

// Messages keep their fields from send to receive, also through JSON lines and files.
func TestSendAndReceive(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	file := filepath.Join(tl.home, "body")
	assert.Must(t, os.WriteFile(file, []byte{0xff, 0, 1}, 0o600))
	tl.must("send", "orders", "argument", "--tag", "created", "--key", "k1", "--key", "k2", "-p", "color=red")
	tl.must("send", "orders", "@"+file)
	for _, in := range []struct {
		stdin string
		args  []string
	}{
		{"standard input", []string{"send", "orders", "-"}},
		{"line 1\nline 2\n", []string{"send", "orders", "--lines"}},
		{`{"body_text":"json","tag":"t"}` + "\n", []string{"send", "orders", "--jsonl", "--tag", "other"}},
	} {
		tl.pipe(in.stdin, in.args...)
	}
	got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "--max", "6", "-o", "jsonl").stdout)
	bodies := map[string]received{}
	for _, m := range got {
		bodies[m.BodyText+string(m.Body)] = m
	}
	for _, want := range []string{"argument", "\xff\x00\x01", "standard input", "line 1", "line 2", "json"} {
		if _, ok := bodies[want]; !ok {
			t.Errorf("the body %q did not come; %d messages came", want, len(got))
		}
	}
	if m := bodies["argument"]; m.Tag != "created" || !slices.Equal(m.Keys, []string{"k1", "k2"}) || m.Properties["color"] != "red" || m.Attempt != 1 {
		t.Errorf("the message with all fields is %+v", m)
	}
	assert.Equal(t, "the tag of the JSON line is", bodies["json"].Tag, "t")
	tl.fails(7, "", "receive", "billing", "orders", "--then", "ack", "--wait", "10ms", "--expect", "1") // after everything was acknowledged
}

// Priorities pass from the flag and from JSON lines through receive, peek, --exec, templates, dead
// letters and a move.
func TestCommandsKeepPriorities(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	for _, tl := range []*tool{source, target} {
		tl.must("topic", "create", "alerts", "type=PRIORITY", "queues=3")
	}
	source.must("send", "alerts", "low")
	source.must("send", "alerts", "high", "--priority", "2")
	source.pipe(`{"body_text":"middle","priority":1}`+"\n", "send", "alerts", "--jsonl")
	source.fails(2, "it is -1; give 0 to", "send", "alerts", "x", "--priority", "-1")
	source.must("peek", "alerts", "-o", "wide").prints("PRIORITY")
	source.must("receive", "duty", "alerts", "--then", "release", "--max", "1").prints("priority 2", "high")
	source.must("receive", "duty", "alerts", "--then", "release", "--max", "3", "-f", "%b %r\n").is("high 2\nmiddle 1\nlow 0\n")
	source.must("receive", "duty", "alerts", "--then", "dead=no", "--max", "1")
	source.must("dead-letters", "list", "duty", "-o", "wide").prints("PRIORITY")
	source.must("dead-letters", "redrive", "duty", "--yes")
	source.must("move", "alerts", "--group", "duty", "--to", "target", "--yes").prints("moved  3")
	source.must("topic", "show", "alerts").prints("PRIORITY")
	got := messagesOf(target, "duty", "alerts", 3)
	assert.MustEqual(t, "messages that the target has", len(got), 3)
	for i, want := range []string{"high", "middle", "low"} {
		assert.That(t, got[i].BodyText == want && got[i].Priority == 2-i, "message %d of the target is %+v, want %s", i, got[i], want)
	}
	target.must("send", "alerts", "x", "--priority", "1")
	target.must("receive", "duty", "alerts", "--max", "1", "--exec", "test $TIDEGATE_PRIORITY = 1")
}

// Lite topics pass from the flag, from JSON lines and from templates through receive --lite, peek,
// --exec, dead letters and a move. The lite topics of a topic are listed and deleted.
func TestCommandsKeepLiteTopics(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	for _, tl := range []*tool{source, target} {
		tl.must("topic", "create", "sessions", "type=LITE", "lite.expiry=1h")
		tl.must("group", "create", "agents", "fifo=true", "lite.topic=sessions", "lite.max_topics=3")
	}
	source.must("topic", "show", "sessions").prints("LITE", "lite.expiry", "1h0m0s")
	source.must("group", "show", "agents").prints("lite.topic", "sessions")
	source.must("send", "sessions", "hello", "--lite-topic", "a")
	source.pipe(`{"body_text":"again","lite_topic":"a"}`+"\n", "send", "sessions", "--jsonl")
	source.must("send", "sessions", "number %n", "--template", "--lite-topic", "s%n", "--count", "5")
	source.fails(2, "65 bytes", "send", "sessions", "x", "--lite-topic", strings.Repeat("x", 65))
	source.fails(2, "set LiteTopic", "send", "sessions", "x")
	source.must("peek", "sessions", "-o", "wide").prints("LITE-TOPIC", "s5")

	source.must("topic", "lite", "sessions", "-o", "name").is("a\ns1\ns2\ns3\ns4\ns5\n")
	source.must("topic", "lite", "sessions", "--limit", "2").prints("MESSAGES", "a", "s1")
	source.must("receive", "agents", "sessions", "--lite", "a", "--lite", "s1", "--then", "release", "--max", "1", "-f", "%L\n")
	source.must("receive", "agents", "sessions", "--lite", "a", "--then", "ack", "--max", "1", "--wait", "1s").prints("lite topic a", "hello")
	source.run("receive", "agents", "sessions", "--then", "ack").exits(2).notes("Name lite topics with --lite; 'tidegate topic lite sessions' lists them.")
	source.fails(2, "exclude", "receive", "agents", "sessions", "--lite", "a", "--filter", "x", "--then", "ack")
	source.fails(2, "blank", "receive", "agents", "sessions", "--lite", " ", "--then", "ack")
	source.fails(1, `the limit of group "agents" is 3`, "receive", "agents", "sessions", "--lite", "1", "--lite", "2", "--lite", "3", "--lite", "4", "--then", "ack")
	source.must("receive", "agents", "sessions", "--lite", "s1", "--max", "1", "--exec", "test $TIDEGATE_LITE_TOPIC = s1")
	source.must("topic", "lite", "sessions", "--group", "agents", "-o", "name").is("a\ns2\ns3\ns4\ns5\n")
	source.fails(3, "there is no lite topic", "topic", "delete-lite", "sessions", "s9", "--yes")
	source.must("topic", "delete-lite", "sessions", "s5", "--dry-run")
	source.must("topic", "delete-lite", "sessions", "s5", "--yes").notes("1 stored message")
	source.fails(2, "--lite is for a RocketMQ", "move", "sessions", "--group", "agents", "--to", "target", "--yes", "--lite", "a")

	source.must("receive", "agents", "sessions", "--lite", "s2", "--then", "dead=no", "--max", "1", "--wait", "1s")
	source.must("dead-letters", "list", "agents", "-o", "wide").prints("LITE-TOPIC", "s2")
	source.must("dead-letters", "redrive", "agents", "--yes")
	source.must("send", "sessions", "last", "--lite-topic", "a")
	source.must("move", "sessions", "--group", "agents", "--to", "target", "--yes").prints("moved  5")
	got := map[string]string{}
	for _, lite := range []string{"a", "s2", "s3", "s4"} {
		for _, m := range messagesOf(target, "agents", "sessions", 2, "--lite", lite) {
			got[m.LiteTopic] += m.BodyText + " "
		}
	}
	assert.That(t, maps.Equal(got, map[string]string{"a": "again last ", "s2": "number 2 ", "s3": "number 3 ", "s4": "number 4 "}), "the target has %v", got)
}

// Looking at messages consumes nothing and counts no attempt: on a terminal it is the default.
func TestLookingDoesNotConsume(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("send", "orders", "b")
	tl.terminal = true
	for range 3 {
		got := lines[received](t, tl.must("receive", "billing", "orders", "--max", "2", "-o", "jsonl").stdout)
		assert.MustThat(t, len(got) == 2 && got[0].Attempt == 1 && got[1].Attempt == 1, "a look got %+v, want both messages in attempt 1", got)
	}
	tl.terminal = false
	tl.fails(2, "--then", "receive", "billing", "orders") // without a terminal and --then
}

// A worker's exit code is the verdict: 0 acknowledges, 75 retries, another makes a dead letter. Its
// reason is the last line of the standard error.
func TestExecVerdicts(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("group", "create", "billing", "retry=1s")
	for _, body := range []string{"good", "busy", "bad"} {
		tl.must("send", "orders", body)
	}
	script := `case "$(cat)" in
bad) echo first >&2; echo no such account >&2; exit 1;;
busy) [ "$TIDEGATE_ATTEMPT" = 1 ] && exit 75;;
esac
echo "$TIDEGATE_TOPIC $TIDEGATE_ATTEMPT"`
	r := tl.run("receive", "billing", "orders", "--exec", script, "--max", "4", "--workers", "2")
	assert.That(t, r.code == 0 && strings.Count(r.stdout, "orders 1") == 1 && strings.Count(r.stdout, "orders 2") == 1, "exit code %d, %s%s", r.code, r.stdout, r.stderr)
	tl.must("dead-letters", "list", "billing").prints("no such account (exit code 1)").lacks("first")
}

// The poison message among many is found, seen, corrected and sent back in four commands.
func TestRepair(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	var stdin strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&stdin, "order %d\n", i)
	}
	tl.input(stdin.String(), "send", "orders", "--lines")
	tl.must("send", "orders", "order x EUR")
	tl.must("receive", "billing", "orders", "--exec", `grep -q EUR && { echo "unknown currency EUR" >&2; exit 1; }; true`, "--max", "1001", "--workers", "16")
	top := lines[struct {
		Fingerprint, Reason string
		Count               int
	}](t, tl.must("dead-letters", "top", "billing", "-o", "jsonl").stdout)
	assert.MustThat(t, len(top) == 1 && top[0].Count == 1 && strings.Contains(top[0].Reason, "unknown currency EUR"), "the classes are %+v", top)
	var page struct {
		Letters int
		Classes []struct {
			Fingerprint string
			Share       float64
			Sample      []string
		}
	}
	decode(t, tl.must("dead-letters", "top", "billing", "-o", "json").stdout, &page)
	assert.That(t, page.Letters == 1 && len(page.Classes) == 1 && page.Classes[0].Share == 1 && len(page.Classes[0].Sample) == 1, "the broker's classes are %+v", page)
	id := page.Classes[0].Sample[0]
	for command, next := range map[string]string{
		"top billing": "tidegate dead-letters show billing " + id, "show billing " + id: "tidegate dead-letters redrive billing --id " + id,
	} {
		tl.must(append([]string{"dead-letters"}, strings.Fields(command)...)...).prints(id).notes(next)
	}
	read := page
	read.Classes = nil
	decode(t, tl.must("dead-letters", "top", "billing", "--since", "-1h", "-o", "json").stdout, &read)
	if read.Letters != 1 || len(read.Classes) != 1 || read.Classes[0].Fingerprint != top[0].Fingerprint || len(read.Classes[0].Sample) != 1 {
		t.Errorf("the classes of the letters are %+v, want the broker's class with a sample", read)
	}
	tl.must("dead-letters", "redrive", "billing", "--class", top[0].Fingerprint, "--dry-run").prints("would be sent back  1")
	tl.must("dead-letters", "redrive", "billing", "--class", top[0].Fingerprint, "--edit", "sed s/EUR/USD/", "--yes")
	got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "--max", "1", "-o", "jsonl").stdout)
	assert.That(t, len(got) == 1 && got[0].BodyText == "order x USD", "the corrected message is %+v", got)
	tl.must("dead-letters", "list", "billing").notes("no dead letters")
}

// A name that does not exist ends with 3 and a suggestion; an existing name is no suggestion.
func TestUnknownNames(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("group", "create", "billing")
	for _, c := range []struct {
		args []string
		hint string
	}{
		{[]string{"topic", "show", "order"}, "Did you mean orders?"},
		{[]string{"topic", "purge", "ordersx", "--yes"}, "Did you mean orders?"},
		{[]string{"group", "show", "biling"}, "Did you mean billing?"},
		{[]string{"group", "set", "biling", "max_attempts=3"}, "Did you mean billing?"},
		{[]string{"dead-letters", "show", "billing", "none"}, ""},
	} {
		tl.fails(3, c.hint, c.args...)
	}
}

// Settings are changed by name; the others stay, and a wrong name gets a suggestion.
func TestSettings(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "type=FIFO", "queues=3", "max_backlog.messages=1000", "retention.time=24h")
	tl.must("topic", "set", "orders", "max_backlog.messages=2000")
	var topic struct {
		Type       string
		Queues     int
		MaxBacklog struct{ Messages int } `json:"max_backlog"`
		Retention  struct{ Time string }
	}
	assert.Must(t, json.Unmarshal([]byte(tl.must("topic", "show", "orders", "-o", "json").stdout), &topic))
	assert.That(t, topic.Type == "FIFO" && topic.Queues == 3 && topic.MaxBacklog.Messages == 2000 && (topic.Retention.Time == "24h0m0s" || topic.Retention.Time == "24h"), "the topic is %+v", topic)
	tl.must("topic", "set", "orders", "queues=5", "--dry-run").is("queues: 3 -> 5\n")
	for _, c := range []struct{ arg, hint string }{
		{"max_backlok.messages=1", "did you mean max_backlog?"},
		{"queues=many", "queues"},
		{"queues", "KEY=VALUE"},
		{"queues.x=1", "one value"},
	} {
		tl.fails(2, c.hint, "topic", "set", "orders", c.arg)
	}
}

// A removal needs --yes without a terminal, and on a protected context the name of its subject.
func TestConfirmation(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.fails(2, "--yes", "topic", "purge", "orders") // without --yes
	tl.terminal = true
	for _, no := range []string{"n\n", "no\n", "\n", "", "maybe\n", "yess\n", "x y\n"} {
		tl.input(no, "topic", "purge", "orders").exits(1).notes("purge 1 message of orders, 1 B? [y/N]")
	}
	tl.terminal = false
	tl.must("context", "add", "prod", "--grpc", tl.grpc, "--http", tl.http, "--protect")
	tl.fails(2, "--yes=orders", "topic", "purge", "orders", "--yes", "--context", "prod") // on a protected context
	tl.must("topic", "purge", "orders", "--dry-run").notes("would remove 1 message of orders, 1 B")
	tl.must("topic", "purge", "orders", "--yes=orders", "--context", "prod").notes("removed 1 message, 1 B")
	tl.must("context", "remove", "prod")
	tl.terminal = true
	for _, yes := range []string{"y\n", "yes\n", "y"} {
		tl.pipe(yes, "topic", "purge", "orders").notes("removed 0 messages")
	}
}

// After Ctrl-C the messages under way end, none is cut off, and the error names the rest of the
// input.
func TestInterruptedSend(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	ctx, interrupt := context.WithCancel(limited(t))
	in := &endless{at: 5000, reached: interrupt}
	var stdout, stderr lockedBuffer
	code := run(ctx, []string{"send", "orders", "--lines"}, &cli.App{In: in, Out: &stdout, Err: &stderr, Env: func(name string) string { return tl.env[name] }})
	assert.MustThat(t, code == 130 && strings.Contains(stderr.String(), " 0 failed"), "exit code %d, %s", code, stderr.String())
	var rest int
	if _, err := fmt.Sscanf(regexp.MustCompile(`tail -n \+\d+`).FindString(stderr.String()), "tail -n +%d", &rest); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	assert.Equal(t, "stored messages before the rest", tl.stored("orders"), rest-1)
}

// Ctrl-C ends a wait for input: for lines, of which those before it are sent, for a body, for a
// document, and for the answer to a question.
func TestInterruptedInput(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	for name, c := range map[string]struct {
		args     []string
		input    string
		terminal bool
		stored   int
	}{
		"lines":    {[]string{"send", "orders", "--lines"}, "a\nb\n", false, 2},
		"JSON":     {[]string{"send", "orders", "--jsonl"}, `{"body_text":"a"}` + "\n", false, 1},
		"template": {[]string{"send", "orders", "%l", "--lines", "--template"}, "a\n", false, 1},
		"a body":   {[]string{"send", "orders", "-"}, "a\n", false, 0},
		"document": {[]string{"apply", "-"}, "topics:\n", false, 0},
		"request":  {[]string{"api", "PUT", "/v1/topics/x", "-"}, "{", false, 0},
		"question": {[]string{"topic", "purge", "orders"}, "", true, 0},
	} {
		tl.must("topic", "purge", "orders", "--yes")
		ctx, interrupt := context.WithCancel(limited(t))
		in, stdin := io.Pipe()
		var stdout, stderr lockedBuffer
		done := make(chan int, 1)
		go func() {
			defer in.Close() // ends the write
			done <- run(ctx, c.args, &cli.App{In: in, Out: &stdout, Err: &stderr, Terminal: c.terminal, Env: func(name string) string { return tl.env[name] }})
		}()
		if c.input != "" {
			_, _ = stdin.Write([]byte(c.input)) // the command reads it
		}
		for (tl.stored("orders") < c.stored || c.terminal && !strings.Contains(stderr.String(), "[y/N]")) && len(done) == 0 {
			runtime.Gosched()
		}
		interrupt()
		if code := <-done; code != 130 || !strings.Contains(stderr.String(), "interrupted") || strings.Contains(stderr.String(), "--help") {
			t.Errorf("%s: exit code %d, %s", name, code, stderr.String())
		}
		assert.Equal(t, name+": stored messages", tl.stored("orders"), c.stored)
		_ = stdin.Close()
	}
}

// An endless input has lines without end, and calls reached once.
type endless struct {
	n, at   int
	reached func()
}

func (e *endless) Read(p []byte) (int, error) {
	if e.n += copy(p, "line\n"); e.n >= e.at {
		e.reached()
	}
	return len("line\n"), nil
}

// An interrupted redrive prints a command with all of its flags. A dry run shows bodies before and
// after --edit. A selection without dead letters is an error.
func TestRedriveAdvice(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	for i := range 3 {
		tl.must("send", "orders", fmt.Sprintf("%d EUR", i))
	}
	tl.must("receive", "billing", "orders", "--then", "dead=unknown currency", "--max", "3")
	tl.must("dead-letters", "redrive", "billing", "--edit", "sed s/EUR/USD/", "--dry-run").prints("EUR -> ", " USD")
	tl.fails(3, "", "dead-letters", "redrive", "billing", "--class", "none", "--yes") // nothing to send back
	ctx, interrupt := context.WithCancel(limited(t))
	var stdout, stderr lockedBuffer
	journal := filepath.Join(tl.home, "a journal.jsonl")
	args := []string{"dead-letters", "redrive", "billing", "--edit", "touch '" + journal + ".begun'; sed s/EUR/USD/", "--rate", "0.1", "--reason", "unknown currency", "--journal", journal, "--yes"}
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, args, tl.app(&stdout, &stderr))
	}()
	for _, err := os.Stat(journal + ".begun"); err != nil && len(done) == 0; _, err = os.Stat(journal + ".begun") {
		runtime.Gosched()
	}
	interrupt()
	if code := <-done; code != 130 {
		t.Errorf("exit code %d, want 130: %s", code, stderr.String())
	}
	for _, want := range []string{"--edit='touch '", "--reason='unknown currency'", "--rate=0.1", "--journal='" + journal + "'", "--yes=true"} {
		assert.That(t, strings.Contains(stderr.String(), want), "the advice lacks %s:\n%s", want, stderr.String())
	}
}

// A worker with --wait ends when no more messages arrive.
func TestWorkerEndsAfterWait(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "5")
	tl.must("receive", "billing", "orders", "--exec", "cat > /dev/null", "--wait", "300ms").notes("5 handled, 0 failed")
}

// status shows the dead letters of the last hour, of a survey that can be a second old. check
// counts the dead letters that are stored.
func TestStatusAndCheckOfDeadLetters(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("status").prints("Nothing is wrong.")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", "1")
	const wrong = "billing in orders  1 dead letter; 1 came in the last hour  tidegate dead-letters top billing"
	tl.until(1, wrong, "status", "--watch=100ms").prints(wrong)
	var o struct {
		Ready  bool
		Totals struct{ Topics int }
		Wrong  struct {
			DeadLetters struct{ Count int } `json:"dead_letters"`
		}
	}
	if decode(t, tl.must("status", "-o", "json").stdout, &o); !o.Ready || o.Totals.Topics != 2 || o.Wrong.DeadLetters.Count != 1 {
		t.Errorf("the JSON has %+v, want two topics and a group with dead letters", o)
	}
	tl.fails(1, "", "check", "group", "billing", "--dead-letters-warn", "1")
	tl.must("dead-letters", "purge", "billing", "--yes")
	// A purged dead letter needs no attention. The broker counts at most once a second.
	tl.until(1, "Nothing is wrong.", "status", "--watch=100ms").prints("Nothing is wrong.")
	tl.must("check", "group", "billing", "--dead-letters-warn", "1")
	tl.fails(3, "", "check", "nonsense") // check with a wrong argument
}

// A redrive with --edit prints the new ID of each message, ID.redrive-1. A letter that the program
// does not change stays, and is counted: a part of the letters was sent back.
func TestRedriveReportsEdits(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	var ids []string // in the order of the messages, which the results of one command need not have
	for _, body := range []string{"1 EUR", "2 CHF"} {
		ids = append(ids, strings.Fields(tl.must("send", "orders", body, "-o", "name").stdout)...)
	}
	tl.must("receive", "billing", "orders", "--then", "dead=unknown currency", "--max", "2")
	r := tl.run("dead-letters", "redrive", "billing", "--edit", "sed s/EUR/USD/", "--max-failures", "1", "--yes")
	assert.MustThat(t, r.code == 7 && len(ids) == 2, "exit code %d, want 7; sent %q\n%s%s", r.code, ids, r.stdout, r.stderr)
	for _, want := range []string{ids[0] + " was sent as " + ids[0] + ".redrive-1; 'tidegate trace " + ids[0] + ".redrive-1' shows", ids[1] + " failed: edit: the program of --edit did not change the body"} {
		assert.That(t, strings.Contains(r.stderr, want), "stderr lacks %q:\n%s", want, r.stderr)
	}
	assert.That(t, strings.Contains(r.stdout, "failed, not changed by --edit  1"), "the result lacks the count:\n%s", r.stdout)
	tl.must("dead-letters", "list", "billing", "-o", "name").is(ids[1] + "\n")
	// A trace leads from each of both messages to the other one.
	anew := ids[0] + ".redrive-1"
	tl.must("trace", ids[0]).prints("its dead letter was sent back as message " + anew + ": tidegate trace " + anew + "\n")
	tl.must("trace", anew).prints("tidegate trace "+ids[0]+"\n", "billing has not received it")
	tl.must("trace", ids[1]).lacks("redrive-1")
	var doc struct {
		Topics []struct {
			As   string `json:"redriven_as"`
			From string `json:"redriven_from"`
		}
	}
	for id, want := range map[string][2]string{ids[0]: {anew, ""}, anew: {"", ids[0]}} {
		if decode(t, tl.must("trace", id, "-o", "json").stdout, &doc); len(doc.Topics) != 1 || [2]string{doc.Topics[0].As, doc.Topics[0].From} != want {
			t.Errorf("the trace of %s is %+v, want %q", id, doc, want)
		}
		doc.Topics = nil
	}
}

// A send with receipts ends soon after its output has failed, also if its input has no end.
func TestSendEndsWithItsOutput(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	ctx, interrupt := context.WithCancel(limited(t))
	defer interrupt()
	in := &endless{at: 500_000, reached: interrupt}
	var stderr lockedBuffer
	code := run(ctx, []string{"send", "orders", "--lines", "-o", "jsonl"}, &cli.App{In: in, Out: fullOutput{}, Err: &stderr, Env: func(name string) string { return tl.env[name] }})
	if code == 0 || ctx.Err() != nil || !strings.Contains(stderr.String(), "no space left on device") {
		t.Errorf("exit code %d after %d lines: %s", code, in.n/len("line\n"), stderr.String())
	}
}

// After a failed acknowledgement the messages that arrive are not acknowledged: they are released,
// and come again at once.
func TestReceivedAfterAFailedAcknowledgement(t *testing.T) {
	batches := [2][]*tidegate.Delivery{}
	for i := range 40 {
		d := &tidegate.Delivery{Message: tidegate.Message{ID: strconv.Itoa(i), Topic: "orders", Body: []byte("x")}, Attempt: 1}
		batches[min(i/16, 1)] = append(batches[min(i/16, 1)], d)
	}
	fake := &transporttest.Fake{
		Announces: transport.Capabilities{Verdicts: transport.Snooze},
		OnReceive: func(ctx context.Context, n int, _ transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
			switch n {
			case 1:
				return batches[0], nil
			case 2: // it has messages when an acknowledgement has failed, which ends ctx
				<-ctx.Done()
				return batches[1], nil
			}
			return nil, nil
		},
		OnAck: func(_ context.Context, _ int, ds []*tidegate.Delivery) []error {
			return slices.Repeat([]error{&tidegate.Error{Op: "AckMessage", Code: tidegate.CodeInternalServerError}}, len(ds))
		},
	}
	tl := newTool(t)
	var stderr lockedBuffer
	app := tl.app(io.Discard, &stderr)
	app.Env = func(name string) string { return map[string]string{"HOME": tl.home}[name] }
	app.Foreign = map[string]*cli.Foreign{"amqp": {Open: func(context.Context, cli.Server) (cli.Transport, error) { return fake, nil }}}
	code := run(limited(t), []string{"receive", "billing", "orders", "--amqp", "amqp://127.0.0.1:1", "--then", "ack", "--max", "40", "-o", "jsonl"}, app)
	if acks, released := fake.Calls("Ack"), fake.Calls("Settle"); code == 0 || len(acks) != 1 || len(released) != len(batches[1]) {
		t.Errorf("exit code %d after %d acknowledgements; %d messages released, want %d: %s", code, len(acks), len(released), len(batches[1]), stderr.String())
	}
}

// A send with a spool delivers the messages of earlier ones too, before it ends. Without a server
// it names those that are left, and ends at once. A message that the server rejects is an error.
func TestSendDeliversTheSpool(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	dir := filepath.Join(tl.home, "spool")
	fill := func(n int, topic string) {
		t.Helper()
		s := assert.Value(spool.Open(dir, spool.Options{}))(t)
		var msgs []*tidegate.Message
		for i := range n {
			msgs = append(msgs, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: []byte(strconv.Itoa(i))})
		}
		assert.Must(t, errors.Join(append(s.PutBatch(t.Context(), msgs), s.Close())...))
	}
	stored := func(want int) {
		t.Helper()
		assert.Equal(t, "the topic has messages", tl.stored("orders"), want)
	}
	fill(600, "orders")
	tl.must("send", "orders", "away", "--spool", dir, "--grpc", "127.0.0.1:1").notes("601 messages in " + dir)
	stored(0)
	tl.must("send", "orders", "there", "--spool", dir).lacks(dir)
	stored(602)
	fill(3, "orders")
	tl.pipe("", "send", "orders", "--lines", "--spool", dir).lacks(dir)
	stored(605)
	tl.must("topic", "create", "ordered", "type=FIFO")
	fill(1, "ordered") // without a message group
	tl.input("", "send", "orders", "--lines", "--spool", dir).exits(7).notes("the server rejects 1 message of " + dir)
}

// An output on a full disk is an error with the reason, and no fault of the arguments. No command
// offers to continue behind items that it has not printed.
func TestFullOutput(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "body", "--count", "40")
	tl.must("receive", "billing", "orders", "--then", "dead", "--max", "5")
	for _, line := range []string{
		"peek orders", "peek orders --bodies", "find orders --contains body", "topic list", "topic show orders", "group list", "status",
		"dead-letters list billing", "dead-letters top billing", "dead-letters export billing", "send orders x --count 2",
	} {
		for _, format := range []string{"table", "json", "jsonl", "name"} {
			args := append(strings.Fields(line), "-o", format)
			if (strings.HasPrefix(line, "send") || strings.HasSuffix(line, "export billing")) && format == "table" {
				continue // it prints nothing, or has no such format
			}
			var stderr lockedBuffer
			code := run(limited(t), args, tl.app(fullOutput{}, &stderr))
			if text := stderr.String(); code != 1 || !strings.Contains(text, "no space left on device") || strings.Contains(text, "Continue with") {
				t.Errorf("%s: exit code %d, %s", strings.Join(args, " "), code, text)
			}
		}
	}
}

// --rate bounds the messages a second from the first one on.
func TestSendRate(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	begin := time.Now()
	tl.must("send", "orders", "a", "--count", "5", "--rate", "20")
	if took := time.Since(begin); took < 190*time.Millisecond { // 4 intervals of 50 ms
		t.Errorf("5 messages at 20 a second took %v", took)
	}
}

// A redrive that finds no dead letter ends with the code of a missing subject, but not if it
// skipped one because it was sent back too often.
func TestRedriveOfSkippedLetters(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", "1")
	tl.must("dead-letters", "redrive", "billing", "--yes")
	tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", "1")
	tl.must("dead-letters", "redrive", "billing", "--yes", "--max-redrives", "1")
	tl.fails(3, "", "dead-letters", "redrive", "billing", "--yes", "--class", "000000") // no letter of the class
}
