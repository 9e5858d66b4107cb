package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/assert"
)

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
