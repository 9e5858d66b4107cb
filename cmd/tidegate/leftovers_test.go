package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/assert"
)

// closedPort returns an address at which no server listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	assert.Must(t, l.Close())
	return address
}

// If no server accepts a message, send prints after two seconds why it waits and how to end it.
// Ctrl-C then ends it at once, because no server has the message.
func TestSendReportsItsWait(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	ctx, interrupt := context.WithCancel(limited(t))
	defer interrupt()
	stderr := &watchedBuffer{text: "waiting for " + address, seen: interrupt}
	tl := &tool{env: map[string]string{"XDG_CONFIG_HOME": t.TempDir()}}
	began := time.Now()
	code := run(ctx, []string{"send", "orders", "a", "--grpc", address}, tl.app(io.Discard, stderr))
	took := time.Since(began)
	assert.That(t, code == 130 && took >= 2*time.Second && took <= 10*time.Second, "exit code %d after %v, want 130 after a little more than 2s: %s", code, took, stderr)
	for _, want := range []string{"connection refused", "30s (--ack-timeout)", "Ctrl-C ends it\n"} {
		assert.That(t, strings.Contains(stderr.String(), want), "the note lacks %q: %s", want, stderr)
	}
}

// A command that has no connection prints after a second that it waits, and for how long. Its error
// has the fault and the remedy. With JSON the error is all that is on stderr.
func TestConnectionIsReported(t *testing.T) {
	address := closedPort(t)
	tl := newTool(t, "--topic", "orders")
	tl.must("group", "create", "g")
	tl.must("context", "add", "target", "--grpc", address)
	for _, args := range []string{
		"receive g orders --then ack --grpc " + address + " --timeout 1200ms", "topic list --http http://" + address,
		"move orders --group g --to target --yes", "dead-letters list g --http http://" + address,
		"dead-letters redrive g --yes --journal " + filepath.Join(tl.home, "journal") + " --http http://" + address,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(limited(t))
			defer interrupt()
			stderr := &watchedBuffer{text: "not connected to " + address, seen: func() {}}
			bounded := strings.Contains(args, "--timeout")
			if !bounded {
				stderr.seen = interrupt
			}
			code := run(ctx, strings.Fields(args), tl.app(io.Discard, stderr))
			text := stderr.String()
			assert.That(t, strings.Count(text, "not connected to "+address+": dial tcp "+address+": connect: connection refused; trying again") == 1, "it prints %q", text)
			assert.That(t, !bounded || code == 6 && strings.Contains(text, "(--timeout): dial tcp "+address) && strings.Contains(text, "--grpc, --http or a context"), "exit code %d, %s", code, text)
		})
	}
	t.Run("JSON", func(t *testing.T) {
		t.Parallel()
		r := tl.run("receive", "g", "orders", "--then", "ack", "-o", "json", "--grpc", address, "--timeout", "1200ms")
		var problem map[string]any
		if err := json.Unmarshal([]byte(r.stderr), &problem); err != nil || problem["title"] != "NO_ANSWER" {
			t.Errorf("it prints %q: %v", r.stderr, err)
		}
	})
}

// A watchedBuffer calls seen when it has a text, or has it as often as times.
type watchedBuffer struct {
	lockedBuffer
	text  string
	seen  func()
	times int
}

func (b *watchedBuffer) Write(p []byte) (int, error) {
	n, err := b.lockedBuffer.Write(p)
	if strings.Count(b.String(), b.text) >= max(b.times, 1) {
		b.seen()
	}
	return n, err
}

// Settings in bytes take units: in arguments, in files of apply, and in flags of the broker.
func TestSizesWithUnits(t *testing.T) {
	tl := newTool(t, "--max-backlog-bytes", "3GiB")
	tl.must("topic", "create", "orders", "max_backlog.bytes=1GiB")
	file := filepath.Join(tl.home, "cluster.yaml")
	write(t, file, "topics:\n  orders:\n    retention: {bytes: 512MiB}\n")
	tl.must("apply", file)
	var topic struct {
		MaxBacklog struct{ Bytes int64 } `json:"max_backlog"`
		Retention  struct{ Bytes int64 }
	}
	decode(t, tl.must("topic", "show", "orders", "-o", "json").stdout, &topic)
	assert.That(t, topic.MaxBacklog.Bytes == 1<<30 && topic.Retention.Bytes == 512<<20, "the topic is %+v", topic)
	parts := filepath.Join(tl.home, "parts.json") // an argument changes one part, and keeps the others of the file
	write(t, parts, `{"max_backlog":{"bytes":"2GiB","messages":5}}`)
	tl.must("topic", "set", "orders", "--file", parts, "max_backlog.messages=7")
	tl.must("topic", "show", "orders", "-o", "json").prints(fmt.Sprint(2<<30), `"messages": 7`)
	tl.must("limits", "set", "max_backlog.bytes=1GiB", "--dry-run", "--yes").prints("max_backlog.bytes")
	tl.must("limits", "show", "-o", "json").prints(fmt.Sprint(3 << 30))
	tl.fails(2, "512MiB", "topic", "set", "orders", "max_backlog.bytes=much") // a size without a number
}

func write(t *testing.T, file, text string) {
	t.Helper()
	assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// Each fault of a file for apply has its file and line, and nothing is applied before all are
// cured.
func TestApplyNamesTheLine(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "fixed", "type=FIFO")
	file := filepath.Join(tl.home, "cluster.yaml")
	for _, c := range []struct {
		text string
		want []string
	}{
		{"topics:\n  orders:\n    queues: 2\n    retentoin: {time: 1h}\n  pays:\n    queues: [1]\ngroups:\n  billing:\n    retry: 1s\n    max_atempts: 3\n", []string{
			`:4: "retentoin" is unknown in topics.orders; did you mean retention?`, ":6: topics.pays.queues is a list", `:10: "max_atempts" is unknown in groups.billing; did you mean max_attempts?`,
		}},
		{"topics:\n  orders:\n    max_backlog:\n      messages: 1\n      byte: 1GiB\n", []string{`:5: "byte" is unknown in topics.orders.max_backlog; did you mean bytes?`}},
		{"topics:\n  orders:\n    max_backlog:\n      messages: 1\n      bytes: much\n", []string{`:5: topics.orders.max_backlog.bytes is "much"`}},
		{"topics:\n  orders: {}\n  orders: {}\n", []string{":3: "}},
		{"topics:\n  orders: {}\n bad\n", []string{": this is not YAML"}},
		{"topcs:\n  orders: {}\n", []string{`:1: "topcs" is unknown; did you mean topics?`}},
		{"topics:\n  other: {}\n  fixed:\n    queues: 3\n    type: NORMAL\n", []string{":5: topic fixed: type is FIFO"}},
		{"groups:\n  billing:\n    max_attempts: -5\n", []string{":3: group billing: max_attempts"}},
	} {
		write(t, file, c.text)
		r := tl.run("apply", file)
		assert.That(t, r.code == 2, "exit code %d, want 2, for\n%s%s", r.code, c.text, r.stderr)
		for _, want := range c.want {
			assert.That(t, strings.Contains(r.stderr, file+want) || strings.Contains(r.stderr, want), "the error lacks %s%s:\n%s", file, want, r.stderr)
		}
		tl.must("topic", "list", "-o", "name").lacks("orders")
	}
}

// A journal continues only the job that began it.
func TestJournalBelongsToOneJob(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	for _, body := range []string{"1 EUR", "2 EUR"} {
		tl.must("send", "orders", body)
	}
	tl.must("receive", "billing", "orders", "--then", "dead=unknown currency", "--max", "2")
	journal := filepath.Join(tl.home, "j.jsonl")
	begin := []string{"dead-letters", "redrive", "billing", "--journal", journal, "--yes", "--edit", "sed s/EUR/USD/"}
	tl.run(append(begin, "--max", "1", "--rate", "7")...).exits(7)
	for _, other := range [][]string{
		{"dead-letters", "redrive", "billing", "--journal", journal, "--yes", "--edit", "sed s/EUR/CHF/"},
		{"dead-letters", "redrive", "billing", "--journal", journal, "--yes"},
		append(begin, "--reason", "currency"),
		{"dead-letters", "redrive", "ledger", "--journal", journal, "--yes", "--edit", "sed s/EUR/USD/"},
	} {
		tl.fails(2, "--edit='sed s/EUR/USD/'", other...)
	}
	tl.must(append(begin, "-o", "json")...).prints(`"redriven": 1`)
	note := filepath.Join(tl.home, "note.txt")
	write(t, note, "a note without a newline")
	tl.fails(2, "not a journal", "dead-letters", "redrive", "billing", "--journal", note, "--yes") // a file that is no journal
	if text, err := os.ReadFile(note); err != nil || string(text) != "a note without a newline" {
		t.Errorf("the file has %q now (%v)", text, err)
	}
}

// A disk that is full ends --dump and --journal with an error that names the file and the message;
// the message stays. A limit on the size of files simulates the full disk.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", strings.Repeat("x", 5000))
	dir := t.TempDir()
	limited := func(blocks int, args string) (string, int) {
		t.Helper()
		c := exec.CommandContext(t.Context(), "bash", "-c", fmt.Sprintf("ulimit -f %d; exec %q %s", blocks, os.Args[0], args))
		c.Env = append(os.Environ(), asProgram+"=1", "XDG_CONFIG_HOME="+dir, "XDG_STATE_HOME="+dir, "TIDEGATE_SERVER_GRPC="+tl.grpc, "TIDEGATE_SERVER_HTTP="+tl.http)
		out, err := c.CombinedOutput()
		if err == nil {
			return string(out), 0
		}
		return string(out), c.ProcessState.ExitCode()
	}
	out, code := limited(2, "receive billing orders --then ack --dump "+dir)
	assert.That(t, code == 1 && strings.Contains(out, "was not settled") && strings.Contains(out, "file too large"), "--dump: exit code %d, %s", code, out)
	if files, err := filepath.Glob(filepath.Join(dir, "0*")); err != nil || len(files) > 0 {
		t.Errorf("half a body is left: %v (%v)", files, err)
	}
	tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", "1")
	journal := filepath.Join(dir, "j.jsonl")
	out, code = limited(0, "dead-letters redrive billing --yes --journal "+journal)
	assert.That(t, code == 1 && strings.Contains(out, journal) && strings.Contains(out, "file too large") && strings.Contains(out, "nothing was done"), "a new journal: exit code %d, %s", code, out)
	write(t, journal, fmt.Sprintf(`{"time":"2026-01-01T00:00:00Z","event":"job","why":"tidegate dead-letters redrive billing"}`+"\n%s", strings.Repeat(`{"time":"2026-01-01T00:00:00Z","event":"begin","group":"billing","generation":0}`+"\n", 30)))
	out, code = limited(2, "dead-letters redrive billing --yes --journal "+journal)
	assert.That(t, code == 1 && strings.Contains(out, journal) && strings.Count(out, "file too large") == 1, "a journal that grows: exit code %d, %s", code, out)
	if out := tl.must("dead-letters", "list", "billing", "-o", "name").stdout; strings.Count(out, "\n") != 1 {
		t.Errorf("the dead letters are\n%s", out)
	}
	const n = 100
	tl.must("send", "orders", "a", "--count", fmt.Sprint(n))
	tl.must("receive", "billing", "orders", "--then", "dead=why", "--max", fmt.Sprint(n))
	out, code = limited(20, "dead-letters redrive billing --yes --rate 10000")
	later := regexp.MustCompile(`this continues it: tidegate dead-letters redrive billing .*--journal[= ]('?)(/\S+\.jsonl)`).FindStringSubmatch(out)
	if code != 7 || strings.Count(out, "file too large") != 1 || !strings.Contains(out, "of ") || !strings.Contains(out, "were sent back before the error") || len(later) == 0 {
		t.Fatalf("a journal that is full in the middle: exit code %d, %s", code, out)
	}
	tl.must("dead-letters", "redrive", "billing", "--yes", "--rate", "10000", "--journal", later[2])
	assert.Equal(t, "messages came back", len(tl.bodies("billing", "orders", 2*n)), n+1)
}

// A body on a terminal has no line that is wider than the terminal, and not more lines than fit.
func TestBodiesAreCut(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.input(strings.Repeat("注文", 100)+"\n"+strings.Repeat("line\n", 200), "send", "orders", "-")
	var stdout, stderr lockedBuffer
	run(t.Context(), []string{"receive", "billing", "orders", "--max", "1"}, &cli.App{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Terminal: true, Columns: 40, Env: func(name string) string { return tl.env[name] },
	})
	lines := strings.Split(stdout.String(), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "    queue ") }) // the head has two
	if want := "  " + strings.Repeat("注文", 9) + "…"; len(lines) != 53 || lines[1] != want || lines[51] != "  … 151 lines more; --raw prints all" {
		t.Errorf("%d lines, the second one %q, want %q:\n%s%s", len(lines), lines[1], want, stdout.String(), stderr.String())
	}
}
