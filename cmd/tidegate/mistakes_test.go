package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/assert"
)

// A mistyped flag or command leads to the right one, at each level in one line.
func TestSimilarNames(t *testing.T) {
	tl := newTool(t)
	for _, c := range []struct{ args, want string }{
		{"topics", `unknown command "topics" for "tidegate"; did you mean 'tidegate topic'?`},
		{"nonsense", `unknown command "nonsense" for "tidegate"` + "\nRun"},
		{"topic lst", "did you mean 'tidegate topic list'?"},
		{"topic lst --help", "did you mean 'tidegate topic list'?"},
		{"dlq shw", "did you mean 'tidegate dead-letters show'?"},
		{"group nonsense", "the commands are create, delete"},
		{"check --dead-letters-critical 1", "unknown flag: --dead-letters-critical; did you mean --dead-letters-crit?"},
		{"peek orders --limits 3", "unknown flag: --limits; did you mean --limit?"},
		{"peek orders --message g", "unknown flag: --message; did you mean --message-group?"},
		{"peek orders --nonsense 3", "unknown flag: --nonsense\nRun"},
	} {
		if r := tl.run(strings.Fields(c.args)...); r.code != 2 || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") != 2 {
			t.Errorf("tidegate %s: exit code %d, %q, want 2 and %q", c.args, r.code, r.stderr, c.want)
		}
	}
}

// --limit bounds the rows of lists. A command whose user could take it for a bound of the work
// rejects the flag, and does nothing.
func TestLimitIsNoBoundOfWork(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "3")
	tl.must("receive", "billing", "orders", "--then", "dead=x", "--max", "3")
	tl.must("send", "orders", "b")
	for _, args := range []string{
		"dead-letters redrive billing --yes --limit 1", "dead-letters purge billing --yes --limit 1",
		"parked redrive billing --yes --limit 1", "receive billing orders --then ack --limit 1",
	} {
		tl.run(strings.Fields(args)...).exits(2).is("").notes("--limit")
	}
	if out := tl.must("dead-letters", "list", "billing", "-o", "name").stdout; strings.Count(out, "\n") != 3 {
		t.Errorf("the dead letters are %q", out)
	}
	tl.must("receive", "--help").lacks("--limit")
}

// The flags for columns and rows, which all commands have, are not ignored in silence by a command
// without a list.
func TestColumnsWithoutAList(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	for args, want := range map[string]string{
		"check --columns level":                     "--columns has no effect: this command prints no list\n",
		"check --sort name":                         "--sort has no effect: this command prints no list\n",
		"topic show orders --no-headers":            "--no-headers has no effect: this command prints no list\n",
		"topic list --columns name --sort -backlog": "", "topic list --columns name -o json": "",
		"peek orders --columns id --no-headers": "", "top --once --sort backlog": "", "group list --sort group": "",
		"topic show orders --queues --no-headers": "", "check": "",
	} {
		if r := tl.must(strings.Fields(args)...); !strings.HasSuffix(r.stderr, want) || want == "" && strings.Contains(r.stderr, "no effect") {
			t.Errorf("tidegate %s prints %q, want %q", args, r.stderr, want)
		}
	}
}

// A command that changes settings needs one: an empty change would create an empty pattern.
func TestSetNeedsASetting(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("group", "create", "billing")
	for _, args := range []string{"topic set orders", "group set billing", "address set orders.#", "limits set --yes"} {
		tl.fails(2, "nothing to change: give KEY=VALUE", strings.Fields(args)...)
	}
	assert.Equal(t, "there are address settings", tl.must("address", "list", "-o", "name").stdout, "")
}

// A line of --jsonl has the delivery time as the HTTP API has it, also as a duration.
func TestLinesWithDeliveryTimes(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "reminders", "type=DELAY")
	tl.pipe(`{"body_text":"x","deliver_after":"1h"}`+"\n", "send", "reminders", "--jsonl")
	if out := tl.must("peek", "reminders", "--delayed", "--time", "relative", "--columns", "deliver", "--no-headers").stdout; out != "in 1h 00m\n" && out != "in 59m 59s\n" {
		t.Errorf("it is delivered %q, want in an hour", out)
	}
	for _, line := range []string{`{"body_text":"x","deliver_after":"1h","deliver_at":"2030-01-01T00:00:00Z"}`, `{"body_text":"x","deliver_after":"-1h"}`} {
		tl.input(line, "send", "reminders", "--jsonl").exits(2).notes("deliver_after")
	}
}

// A message that was delivered at its time is copied without that time, which has passed. A later
// time that a user sets in the line counts.
func TestLinesOfDelayedMessages(t *testing.T) {
	tl := newTool(t, "--topic", "copies")
	tl.must("topic", "create", "reminders", "type=DELAY")
	tl.must("send", "reminders", "x", "--in", "10ms")
	line := tl.must("receive", "billing", "reminders", "--then", "ack", "--max", "1", "--wait", "30s", "-o", "jsonl").stdout
	assert.MustThat(t, strings.Contains(line, `"deliver_at":`), "the line has no time: %s", line)
	if r := tl.input(line, "send", "copies", "--jsonl"); r.code != 0 || !strings.HasPrefix(r.stderr, "1 accepted") {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
	later := regexp.MustCompile(`"deliver_at":"[^"]*"`).ReplaceAllString(line, `"deliver_at":"`+time.Now().Add(time.Hour).Format(time.RFC3339)+`"`)
	if r := tl.input(later, "send", "copies", "--jsonl"); r.code == 0 || !strings.Contains(r.stderr, "DELAY") {
		t.Errorf("with a later time: exit code %d, %s", r.code, r.stderr)
	}
}

// A receipt has an offset only with its queue, and a bound of a check has its default once.
func TestTextsWithoutRepetition(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	if out := tl.must("send", "orders", "a").stdout; strings.Contains(out, "offset") && !strings.Contains(out, "queue") {
		t.Errorf("the receipt is %q", out)
	}
	tl.must("check", "--help").prints("critical if the oldest message that a group has not consumed is at least this time old\n", "warn from N parked messages on (default: never)\n")
}

// The lines that commands print of messages are accepted by send --jsonl. The new message has all
// that a message has, and a place of its own.
func TestPrintedLinesAreAccepted(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("topic", "create", "copies", "duplicate_window=-1s")
	for name, stdin := range map[string]string{"text": "a\nb", "bytes": "\xff\x00"} {
		tl.input(stdin, "send", "orders", "--key", name, "--key", "k2", "--tag", "created", "-p", "name=value")
	}
	const traced = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	tl.input(`{"body_text":"c","tag":"created","keys":["traced"],"properties":{"name":"value"},"trace_context":"`+traced+`"}`, "send", "orders", "--jsonl")
	lines := map[string]string{
		"peek": tl.must("peek", "orders", "-o", "jsonl").stdout, "find": tl.must("find", "orders", "--tag", "created", "-o", "jsonl").stdout,
		"receive": tl.must("receive", "billing", "orders", "--max", "3", "--then", "dead=x", "-o", "jsonl").stdout,
		"export":  tl.must("dead-letters", "export", "billing").stdout,
	}
	original := tl.must("peek", "orders", "--sort", "keys", "--columns", "id,tag,keys,size,text").stdout
	for command, text := range lines {
		if r := tl.input(text, "send", "copies", "--jsonl"); r.code != 0 || !strings.HasPrefix(r.stderr, "3 accepted") {
			t.Errorf("the lines of %s: exit code %d, %s\n%s", command, r.code, r.stderr, text)
		}
		tl.must("peek", "copies", "--property", "name=value", "--sort", "keys", "--columns", "id,tag,keys,size,text").is(original)
		tl.must("peek", "copies", "--key", "traced", "-o", "jsonl").prints(traced)
		tl.must("topic", "purge", "copies", "--yes")
	}
	for line, want := range map[string]string{
		`{"id":"x","body_size":5}`:     "the body of 5 bytes is missing",
		`{"body_text":"x","taag":"t"}`: `the name "taag" is unknown`,
	} {
		tl.input(line, "send", "copies", "--jsonl").exits(2).notes(want)
	}
	if r := tl.input("one\n", "send", "copies", "--lines"); r.code != 0 || !strings.HasPrefix(r.stderr, "1 accepted, 0 failed") {
		t.Errorf("one line prints %q", r.stderr)
	}
}

// Input that can only be read in part, or with other characters, ends a command with an error that
// names the place, and nothing of it is stored.
func TestInputIsReadWhole(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"twice.json": `{"queues":4,"queues":8}`, "two.json": `{"queues":4}{"queues":8}`, "latin.txt": "caf\xe9", "bom.json": "\xef\xbb\xbf{}",
	} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for _, c := range []struct{ stdin, args, says string }{
		{`{"body_text":"1"}{"body_text":"2"}`, "send orders --jsonl", "line 1: another text follows the JSON value at byte 18"},
		{"{\"body_text\":\"caf\xe9\"}", "send orders --jsonl", "line 1: byte 18 is not UTF-8"},
		{`{"body_text":"\ud83d"}`, "send orders --jsonl", "half of a surrogate pair"},
		{"caf\xe9", "send orders --lines x --template --key %l", "UTF-8"},
		{"caf\xe9", "send orders --lines x --template -p a=%l", "UTF-8"},
		{"\xff\xfea\x00", "send orders --lines", "the text is UTF-16"},
		{"", "send orders x -p a=1 -p a=2", "--property a is given twice"},
		{"", "topic set orders queues=9 queues=10", "queues is given twice"},
		{"", "topic set orders --file " + dir + "/twice.json", `the name "queues" is repeated`},
		{"", "topic set orders --file " + dir + "/two.json", "another text follows"},
		{"", "topic set orders --file " + dir + "/bom.json", "byte order mark"},
		{"", "api PATCH /v1/topics/orders @" + dir + "/twice.json", `the name "queues" is repeated`},
		{"", "api PATCH /v1/topics/orders @" + dir + "/two.json", "another text follows"},
		{`{"type":"caf` + "\xe9" + `"}`, "api PUT /v1/topics/more -", "is not UTF-8"},
		{"", "api PUT /v1/topics/more @" + dir + "/latin.txt", "is not UTF-8"},
	} {
		tl.input(c.stdin, strings.Fields(c.args)...).exits(2).notes(c.says)
	}
	if r := tl.input("{\"body_text\":\"1\"}\n \n{\"body_text\":\"2\"}\n", "send", "orders", "--jsonl"); r.code != 0 || !strings.HasPrefix(r.stderr, "2 accepted, 0 failed") {
		t.Errorf("a line of white space: exit code %d, %s", r.code, r.stderr)
	}
	if out := tl.must("peek", "orders", "--sort", "text", "--columns", "text", "--no-headers").stdout; strings.Join(strings.Fields(out), " ") != "1 2" {
		t.Errorf("the topic has %q, want the messages 1 and 2", out)
	}
	tl.must("topic", "show", "orders", "-o", "json").prints(`"queues": 8`)
}

// A request that the server does not know is not supported by it.
func TestUnknownPath(t *testing.T) {
	tl := newTool(t)
	tl.fails(2, "did you mean /v1/topics?", "api", "GET", "/v1/topic")
}

// A topic whose name RocketMQ does not permit, and this broker does, can be created.
func TestCreateTopicWithDots(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders.eu", "queues=2")
	tl.must("send", "orders.eu", "a")
	if r := tl.must("topic", "create", "orders.us", "queues=2", "--dry-run"); r.stderr != "topic orders.us would be new\n" || !strings.HasPrefix(r.stdout, "queues: ") {
		t.Errorf("the dry run prints %s%s", r.stdout, r.stderr)
	}
	tl.fails(2, "' ' at byte 2", "topic", "create", "no name", "--dry-run") // the dry run of an illegal name
	file := filepath.Join(tl.home, "cluster.yaml")
	write(t, file, "topics:\n  orders.apac: {queues: 2}\n")
	if r := tl.must("apply", file); !strings.HasPrefix(r.stdout, "topic orders.apac: new\n") {
		t.Errorf("apply prints %s%s", r.stdout, r.stderr)
	}
	tl.fails(2, "' ' at byte 2", "topic", "create", "no name")                                     // an illegal name
	tl.fails(3, "does not exist", "topic", "set", "orders.us", "retention.time=1h")                // the settings of a topic that does not exist
	tl.fails(2, "fifo is not a string; it is true or false", "group", "create", "g", "fifo=maybe") // a value of another type
}

// Address settings are optional values: each command prints the values.
func TestAddressSettingsAreValues(t *testing.T) {
	tl := newTool(t)
	const want = "max-delivery-attempts  4\nauto-delete-queues     false\n"
	if out := tl.must("address", "set", "orders.#", "max-delivery-attempts=4", "auto-delete-queues=false").stdout; !strings.HasSuffix(out, want) {
		t.Errorf("address set prints %q", out)
	}
	if out := tl.must("address", "show", "orders.#").stdout; !strings.HasSuffix(out, want) {
		t.Errorf("address show prints %q", out)
	}
	if out := tl.must("address", "test", "orders.eu").stdout; !strings.HasSuffix(out, want) {
		t.Errorf("address test prints %q", out)
	}
	tl.must("address", "list").prints("max-delivery-attempts=4").lacks("0x")
	tl.must("address", "set", "orders.#", "max-delivery-attempts=5") // the other stays
	if out := tl.must("address", "show", "orders.#").stdout; !strings.HasSuffix(out, strings.Replace(want, "4", "5", 1)) {
		t.Errorf("after the change of one setting, address show prints %q", out)
	}
}

// The command that continues a look at the newest messages works as it is printed.
func TestPeekContinues(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1")
	tl.must("send", "orders", "m%n", "--template", "--count", "5")
	var got []string
	for args := []string{"peek", "orders", "--from", "last", "--limit", "2", "--columns", "text", "--no-headers"}; args != nil; {
		r := tl.must(args...)
		got, args = append(got, strings.Fields(r.stdout)...), nil
		if _, next, ok := strings.Cut(r.stderr, "Continue with: tidegate "); ok {
			args = strings.Fields(next)
		}
	}
	assert.That(t, strings.Join(got, " ") == "m5 m4 m3 m2 m1", "the messages are %q", got)
	if out := tl.must("peek", "orders", "--limit", "1", "--bodies").stdout; strings.Contains(out, " \n") || !strings.HasSuffix(out, "queue 0 offset 0\n    m1\n") {
		t.Errorf("peek --bodies prints %q", out)
	}
}

// A trace in all topics begins with the topic of the send, and names the copy in the dead letters
// as such.
func TestTraceOfDeadLetter(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	id := strings.TrimSpace(tl.must("send", "orders", "a", "-o", "name").stdout)
	tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", "1")
	out := tl.must("trace", id).stdout
	if first, last := strings.Index(out, "in topic orders"), strings.Index(out, "in topic %DLQ%billing"); first < 0 || last < first || !strings.Contains(out, "it is a dead letter of group billing there") {
		t.Errorf("the trace is\n%s", out)
	}
}

// A broker in memory has no disk, and the status says so.
func TestStatusInMemory(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("status").prints("disk     none: ").lacks("fsync")
}

// A command that finds or knows nothing reports this in words, not as a zero.
func TestEmptyResultsInWords(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("topic", "show", "orders").prints("  1 message, 1 B\n")
	if out := squeezed(tl.must("topic", "list", "--columns", "backlog,oldest", "--no-headers").stdout); out != "1 -\n" {
		t.Errorf("without a group the age of the oldest message is %q", out)
	}
	tl.must("receive", "billing", "orders", "--then", "ack", "--max", "1")
	tl.must("dead-letters", "purge", "billing", "--yes").noted("no dead letters of group billing\n")
	tl.must("check", "topic", "orders", "-o", "json").prints(`"subject":"topic","name":"orders"`, `"text":"no bound is reached"`)
	tl.must("send", "orders", "b")
	tl.must("receive", "billing", "orders", "--then", "dead=x", "--max", "1")
	tl.must("dead-letters", "redrive", "billing", "--dry-run", "--edit", "cat").notes("the edit fails for 1 of the first 1 dead letter;")
}

// After Ctrl-C, receive --then release has released its messages at once, and prints the number of
// printed messages.
func TestInterruptedReceive(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "3")
	r := tl.until(1, `"offset"`, "receive", "billing", "orders", "--then", "release", "--max", "10", "--wait", "1m", "--lease", "10m", "-o", "jsonl")
	printed := strings.Count(r.stdout, "\n")
	assert.That(t, r.code == 130 && strings.Contains(r.stderr, fmt.Sprintf("interrupted after %d message", printed)), "exit code %d after %d messages, %s", r.code, printed, r.stderr)
	if got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "--max", "3", "--wait", "1s", "-o", "jsonl").stdout); len(got) != 3 || got[0].Attempt != 1 {
		t.Errorf("the next receive got %+v, want 3 messages with attempt 1", got)
	}
}

// A signal is the ordinary end of a command that goes on until then. Another command is cut short:
// 128 and the number of the signal.
func TestExitCodesOfSignals(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--then", "dead", "--max", "1")
	tl.must("send", "orders", "a")
	for _, c := range []struct {
		args, until             string // the output after which the signal comes
		interrupted, terminated int
	}{
		{"receive shipping orders --follow --then ack -o name", "\n", 0, 0},
		{"receive %s orders --then ack --max 10 --wait 1m -o name", "\n", 130, 143},
		{"peek orders --follow", "\n", 0, 0},
		{"dead-letters watch billing --since -1h", "\n", 0, 0},
		{"top -o jsonl", "\n", 0, 0},
		{"top --clients -o jsonl", "\n", 0, 0},
		{"status --watch", "\n", 0, 0},
		{"group lag billing --watch", "\n", 0, 0},
	} {
		for _, s := range []struct {
			signal os.Signal
			code   int
		}{{os.Interrupt, c.interrupted}, {syscall.SIGTERM, c.terminated}} {
			ctx, end := context.WithCancelCause(limited(t))
			out, group := &watchedBuffer{text: c.until, seen: func() { end(cli.Signal{Signal: s.signal}) }}, "group-"+s.signal.String()
			tl.must("send", "orders", "a")
			var stderr lockedBuffer
			code := run(ctx, strings.Fields(strings.ReplaceAll(c.args, "%s", group)), tl.app(out, &stderr))
			if code != s.code || !strings.Contains(out.String(), c.until) {
				t.Errorf("%s, %v: exit code %d, want %d: %s", c.args, s.signal, code, s.code, stderr.String())
			}
			end(nil)
		}
	}
}

// receive --follow goes on after a restart of the broker, with what it was acknowledging.
func TestFollowOutlivesARestart(t *testing.T) {
	t.Parallel()
	data, env := t.TempDir(), map[string]string{"XDG_CONFIG_HOME": t.TempDir()}
	app := func(out, err io.Writer) *cli.App {
		return &cli.App{In: strings.NewReader(""), Out: out, Err: err, Env: func(name string) string { return env[name] }}
	}
	serve := func(grpc, http string) (stop func()) {
		ctx, end := context.WithCancel(t.Context())
		ready := make(chan struct{})
		out := &watchedBuffer{text: "\n", seen: sync.OnceFunc(func() { close(ready) })}
		done := make(chan int, 1)
		var log lockedBuffer
		go func() {
			done <- run(ctx, []string{"serve", "--data", data, "--grpc", grpc, "--http", http, "--topic", "orders", "--min-long-polling", "0s", "--log-level", "error"}, app(out, &log))
		}()
		select {
		case <-ready:
		case code := <-done:
			t.Fatalf("the broker ended with %d: %s", code, log.String())
		}
		assert.Must(t, assert.Err(fmt.Sscanf(out.String(), "ready grpc=%s http=%s\n", &grpc, &http)))
		env["TIDEGATE_SERVER_GRPC"], env["TIDEGATE_SERVER_HTTP"] = grpc, "http://"+http
		return func() { end(); <-done }
	}
	must := func(args ...string) string {
		var out, log lockedBuffer
		if code := run(t.Context(), args, app(&out, &log)); code != 0 {
			t.Fatalf("%q: exit code %d, %s", args, code, log.String())
		}
		return out.String()
	}
	stop := serve("127.0.0.1:0", "127.0.0.1:0")
	must("send", "orders", "before")
	ctx, interrupt := context.WithCancel(limited(t))
	defer interrupt()
	first := make(chan struct{})
	begun := &watchedBuffer{text: "before", seen: sync.OnceFunc(func() { close(first) })}
	second := &watchedBuffer{text: "after", seen: interrupt}
	away := make(chan struct{})
	stderr := &watchedBuffer{text: "it goes on when a server responds", seen: sync.OnceFunc(func() { close(away) })}
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"receive", "billing", "orders", "--follow", "--then", "ack", "--raw"}, app(writers{begun, second}, stderr))
	}()
	reached := func(event <-chan struct{}) {
		select {
		case <-event:
		case code := <-done:
			t.Fatalf("it ended with %d, %q: %s", code, begun.String(), stderr.String())
		}
	}
	reached(first)
	stop()
	reached(away)
	stop = serve(env["TIDEGATE_SERVER_GRPC"], strings.TrimPrefix(env["TIDEGATE_SERVER_HTTP"], "http://"))
	defer stop()
	must("send", "orders", "after")
	if code := <-done; code != 0 || strings.Count(begun.String(), "before") != 1 {
		t.Errorf("exit code %d, %q: %s", code, begun.String(), stderr.String())
	}
	if got := lines[struct{ Backlog status.Backlog }](t, must("group", "list", "-o", "jsonl")); len(got) != 1 || got[0].Backlog.Messages != 0 {
		t.Errorf("the groups have %+v, want all messages acknowledged", got)
	}
}

// A receive for a group that does not exist says that it is new, because a mistyped name is one.
func TestNewGroupIsAnnounced(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("receive", "biling", "orders", "--then", "release", "--max", "1").notes("group biling is new", "tidegate group delete biling")
	tl.must("receive", "biling", "orders", "--then", "release", "--max", "1").lacks("is new")
}

// After Ctrl-C, receive --then ack has acknowledged exactly the messages that it printed.
func TestInterruptedAcknowledgements(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "300")
	r := tl.until(1, "\n", "receive", "billing", "orders", "--then", "ack", "--max", "300", "-o", "name")
	printed := strings.Count(r.stdout, "\n")
	if r.code != 130 || printed == 300 || !strings.Contains(r.stderr, fmt.Sprintf("interrupted after %d message", printed)) {
		t.Errorf("exit code %d after %d messages, %s", r.code, printed, r.stderr)
	}
	got := lines[struct{ Acked int }](t, tl.must("group", "list", "-o", "jsonl").stdout)
	assert.That(t, len(got) == 1 && got[0].Acked == printed, "%d messages are printed, and the groups have %+v", printed, got)
}

// If the reader of a pipe ends, the command ends without an error text and releases the messages
// that it has not printed.
func TestClosedPipe(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("group", "create", "billing")
	tl.must("send", "orders", strings.Repeat("x", 10_000), "--count", "100")
	c := exec.CommandContext(t.Context(), "bash", "-c", "tidegate receive billing orders --then release --max 100 --lease 10m -o jsonl | head -c 100; code=${PIPESTATUS[0]}; echo; echo $code")
	c.Env = tl.environ(installed(t))
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil || stderr.String() != "" || !strings.HasSuffix(string(out), "\n1\n") {
		t.Errorf("it printed %q and %q (%v), want nothing on standard error and exit code 1", out, stderr.String(), err)
	}
	if got := tl.must("receive", "billing", "orders", "--then", "ack", "--max", "100", "--wait", "1s", "-o", "name").stdout; strings.Count(got, "\n") != 100 {
		t.Errorf("%d of 100 messages are ready", strings.Count(got, "\n"))
	}
}

// Two redrives of the same dead letters at once send none of them back twice, also with --edit.
func TestTwoRedrivesAtOnce(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string][]string{"moved": nil, "edited": {"--edit", "sed s/EUR/USD/"}} {
		t.Run(name, func(t *testing.T) {
			tl := newTool(t, "--topic", "orders")
			var input strings.Builder
			const n = 60
			for i := range n {
				fmt.Fprintf(&input, "%d EUR\n", i)
			}
			tl.input(input.String(), "send", "orders", "--lines")
			tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", fmt.Sprint(n))
			var both sync.WaitGroup
			for i := range 2 {
				both.Go(func() {
					args := []string{"dead-letters", "redrive", "billing", "--yes", "--rate", "1000", "--max-failures", "1", "--journal", filepath.Join(tl.home, fmt.Sprint(i))}
					tl.run(append(args, edit...)...) // one may find letters that the other has taken
				})
			}
			both.Wait()
			tl.must("dead-letters", "list", "billing", "-o", "name").is("")
			got := tl.bodies("billing", "orders", 2*n)
			slices.Sort(got)
			if len(got) != n || len(slices.Compact(got)) != n {
				t.Errorf("%d messages came back, %d different ones, want %d", len(got), len(slices.Compact(got)), n)
			}
		})
	}
}

// A fullOutput is a file on a full disk.
type fullOutput struct{}

func (fullOutput) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "out", Err: syscall.ENOSPC}
}

// No message is settled that the output has not: if the disk of the output is full, all of them are
// ready again, with their attempts, for every fate and form.
func TestReceiveOnAFullDisk(t *testing.T) {
	tl := newTool(t)
	for i, then := range []string{"ack", "retry", "retry=1h", "dead", "release"} {
		for j, form := range [][]string{{"-o", "jsonl"}, {"-o", "name"}, {"-o", "table"}, {"--raw"}, {"--format", `%b\n`}} {
			topic := fmt.Sprintf("orders-%d-%d", i, j)
			tl.must("topic", "create", topic)
			tl.must("send", topic, "a", "--count", "3")
			var stderr lockedBuffer
			code := run(t.Context(), append([]string{"receive", "billing", topic, "--then", then, "--max", "3", "--lease", "10m"}, form...), tl.app(fullOutput{}, &stderr))
			if code != 1 || !strings.Contains(stderr.String(), "no space left on device") {
				t.Errorf("--then %s %s: exit code %d, %s", then, form, code, stderr.String())
			}
			got := lines[received](t, tl.must("receive", "billing", topic, "--then", "ack", "--max", "3", "--wait", "1s", "-o", "jsonl").stdout)
			assert.That(t, len(got) == 3 && got[0].Attempt+got[1].Attempt+got[2].Attempt == 3, "--then %s %s: the next receive got %+v, want 3 messages in attempt 1", then, form, got)
		}
	}
}

// Released messages are received again in their order: after a look, after the end of a command
// that has not printed them, and by a receive that waited for them.
func TestReleasedMessagesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1")
	for _, body := range []string{"a", "b", "c", "d", "e"} { // one after the other: --lines has no order
		tl.must("send", "orders", body)
	}
	look := func(args ...string) string {
		t.Helper()
		return strings.Join(strings.Fields(tl.must(append([]string{"receive", "billing", "orders", "--max", "5", "--wait", "1s", "--format", `%b\n`}, args...)...).stdout), "")
	}
	for range 2 {
		assert.Equal(t, "a look got", look("--then", "release"), "abcde")
	}
	tl.terminal = true
	tl.pipe("\n\n\n\n\n", "receive", "billing", "orders", "--max", "5", "--then", "ask")
	tl.terminal = false
	run(t.Context(), []string{"receive", "billing", "orders", "--then", "ack", "--max", "5"}, tl.app(fullOutput{}, io.Discard))
	assert.Equal(t, "after all of them were released, a receive got", look("--then", "release"), "abcde")
	var stdout, waited lockedBuffer
	var stop func() int
	started := &watchedBuffer{text: "\n", seen: func() {
		if stop == nil { // the messages are leased: this one waits for them
			stop = tl.start(limited(t), &waited, &stdout, "receive", "billing", "orders", "--then", "ack", "--max", "5", "--wait", "1m", "--format", `%b\n`)
		}
	}}
	code := run(t.Context(), []string{"receive", "billing", "orders", "--then", "release", "--max", "6", "--wait", "2s", "-o", "name"}, tl.app(started, io.Discard))
	if ended := stop(); code != 0 || ended != 0 || strings.Join(strings.Fields(waited.String()), "") != "abcde" {
		t.Errorf("exit codes %d and %d; the receive that waited got %q: %s", code, ended, waited.String(), stdout.String())
	}
}

// An answering input calls a function before its answer to a question.
type answering struct {
	before func()
	answer io.Reader
}

func (a *answering) Read(p []byte) (int, error) {
	if a.before != nil {
		a.before()
		a.before = nil
	}
	return a.answer.Read(p)
}

// A purge removes the dead letters that its question counted, and none that came during it.
func TestPurgeRemovesWhatItAskedFor(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	letter := func(body string) {
		tl.must("send", "orders", body)
		tl.must("receive", "billing", "orders", "--then", "dead=no account", "--max", "1")
	}
	letter("asked for")
	stdin := &answering{func() { letter("later") }, strings.NewReader("y\n")}
	var stderr lockedBuffer
	code := run(t.Context(), []string{"dead-letters", "purge", "billing", "--reason", "no account"}, &cli.App{
		In: stdin, Out: io.Discard, Err: &stderr, Terminal: true, Env: func(name string) string { return tl.env[name] },
	})
	if code != 0 || !strings.Contains(stderr.String(), "remove 1 dead letter of group billing?") || !strings.Contains(stderr.String(), "removed 1 dead letter") {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
	tl.must("dead-letters", "list", "billing", "--bodies", "-o", "jsonl").prints("later").lacks("asked for")
}

// A subject that another operator removes during the question of apply --prune is no error.
func TestPruneOfWhatIsRemoved(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "old")
	tl.must("group", "create", "stale")
	file := filepath.Join(tl.home, "cluster.yaml")
	assert.Must(t, os.WriteFile(file, []byte("topics: {orders: {}}\ngroups: {billing: {}}\n"), 0o600))
	stdin := &answering{func() {
		tl.must("topic", "delete", "old", "--yes")
		tl.must("group", "delete", "stale", "--yes")
	}, strings.NewReader("y\n")}
	var stderr lockedBuffer
	code := run(t.Context(), []string{"apply", file, "--prune"}, &cli.App{
		In: stdin, Out: io.Discard, Err: &stderr, Terminal: true, Env: func(name string) string { return tl.env[name] },
	})
	if code != 0 || !strings.Contains(stderr.String(), "remove group stale with a backlog of 0 messages, topic old with 0 messages?") {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
}

// If a part of the messages failed, the exit code is that of a part, and the others are stored. If
// all failed, it is that of the failure.
func TestSendOfWhichAPartFails(t *testing.T) {
	large := strings.Repeat("x", 5<<20) // a broker accepts 4 MiB
	for _, c := range []struct {
		in   []string
		code int
		text string
	}{
		{[]string{"a", large, "b"}, 7, "1 of 3 messages failed, the first with: "},
		{[]string{large, large, "a"}, 7, "2 of 3 messages failed, the first with: "},
		{[]string{"a", "b"}, 0, "2 accepted, 0 failed"},
		{[]string{large, large}, 2, "0 accepted, 2 failed"},
	} {
		tl := newTool(t, "--topic", "orders")
		r := tl.input(strings.Join(c.in, "\n"), "send", "orders", "--lines")
		stored := strings.Count(tl.must("peek", "orders", "-o", "name").stdout, "\n")
		if good := len(c.in) - strings.Count(strings.Join(c.in, " "), large); r.code != c.code || !strings.Contains(r.stderr, c.text) || stored != good {
			t.Errorf("%d of %d messages are good: exit code %d, want %d; %d stored; %s", good, len(c.in), r.code, c.code, stored, r.stderr)
		}
	}
}
