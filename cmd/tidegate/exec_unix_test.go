//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
)

// deadLetters returns the number of the dead letters of billing.
func (tl *tool) deadLetters() int {
	tl.t.Helper()
	return strings.Count(tl.must("dead-letters", "list", "billing", "-o", "name").stdout, "\n")
}

// await waits until a file has n lines.
func await(t *testing.T, file string, n int) []string {
	t.Helper()
	for ctx := limited(t); ; {
		text, err := os.ReadFile(file)
		assert.MustThat(t, err == nil || os.IsNotExist(err), "%v", err)
		lines := strings.Fields(string(text))
		if len(lines) >= n {
			return lines
		}
		assert.MustThat(t, backoff.Sleep(ctx, 5*time.Millisecond) == nil, "%s has %q, want %d lines", file, lines, n)
	}
}

// ends waits until a process has ended. It may be one that nobody has waited for.
func ends(t *testing.T, pid string) {
	t.Helper()
	const program = `while kill -0 "$0" 2> /dev/null && ! grep -q ') Z ' "/proc/$0/stat"; do sleep 0.01; done`
	assert.NoError(t, exec.CommandContext(limited(t), "sh", "-c", program, pid).Run(), "process %s runs on", pid)
}

// A program that cannot be executed ends the command after as many messages as there are workers.
// They are retried, and no other message has an attempt.
func TestExecOfAnUnusableProgram(t *testing.T) {
	for program, code := range map[string]string{"./chargee.sh": "127", "/etc/passwd": "126", "sh -c ./chargee.sh": "127"} {
		for _, workers := range []int{1, 4} {
			t.Run(fmt.Sprint(program, workers), func(t *testing.T) {
				t.Parallel()
				tl := newTool(t, "--topic", "orders")
				tl.must("send", "orders", "a", "--count", "300")
				tl.run("receive", "billing", "orders", "--exec", program, "--workers", fmt.Sprint(workers)).exits(1).notes("the program cannot be executed", "(exit code "+code+")")
				if n := tl.deadLetters(); n > 0 {
					t.Errorf("%d dead letters", n)
				}
				got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "--max", "300", "--wait", "1s", "-o", "jsonl").stdout)
				if len(got) != 300-workers { // the others wait for their retry
					t.Errorf("%d messages are ready, want %d", len(got), 300-workers)
				}
				for _, m := range got {
					assert.That(t, m.Attempt == 1, "a message that no program had is in attempt %d", m.Attempt)
				}
			})
		}
	}
}

// The same holds if there are fewer messages than workers.
func TestExecOfAnUnusableProgramForFewMessages(t *testing.T) {
	for _, flags := range []string{"--max 2", "--wait 200ms"} {
		tl := newTool(t, "--topic", "orders")
		tl.must("group", "create", "billing", "retry=10m")
		tl.must("send", "orders", "a", "--count", "2")
		tl.bounded("", append([]string{"receive", "billing", "orders", "--exec", "./chargee.sh", "--workers", "4"}, strings.Fields(flags)...)...).exits(1).notes("the program cannot be executed", "2 handled, 2 failed")
	}
}

// Exit codes 126 and 127, and those of signals, are retries and no dead letters. Others are dead
// letters at once.
func TestExecRetries(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("group", "create", "billing", "retry=10m", "max_attempts=3")
	codes := []string{"0", "75", "126", "127", "129", "137", "143", "192", "1", "128", "193", "255"}
	tl.input(strings.Join(codes, "\n"), "send", "orders", "--lines")
	tl.must("receive", "billing", "orders", "--exec", `exit "$(cat)"`, "--max", fmt.Sprint(len(codes)), "--kill-switch", "0")
	var dead []string
	for _, l := range lines[struct {
		BodyText string `json:"body_text"`
	}](t, tl.must("dead-letters", "list", "billing", "--bodies", "-o", "jsonl").stdout) {
		dead = append(dead, l.BodyText)
	}
	if got := strings.Join(dead, " "); len(dead) != 4 || !strings.Contains(got, "128") || !strings.Contains(got, "193") || !strings.Contains(got, "255") {
		t.Errorf("the dead letters have the exit codes %s, want 1 128 193 255", got)
	}
}

// A program that always fails makes few dead letters: the kill switch stops the worker.
func TestExecKillSwitch(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "300")
	ctx, stop := context.WithCancel(limited(t))
	defer stop()
	stderr := &watchedBuffer{text: "kill switch tripped", seen: stop}
	code := tl.start(ctx, io.Discard, stderr, "receive", "billing", "orders", "--exec", "echo no database >&2; exit 1", "--workers", "4")()
	if n := tl.deadLetters(); code != 1 || n < 20 || n > 60 || !strings.Contains(stderr.String(), "the last one with: no database (exit code 1)") {
		t.Errorf("exit code %d, %d dead letters\n%s", code, n, stderr.String())
	}
}

// A kill switch that holds messages back at the end is a failure of the command, also if a message
// had success before.
func TestExecKillSwitchAfterASuccess(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1") // the messages come in their order
	tl.input("good\n"+strings.Repeat("bad\n", 100), "send", "orders", "--lines")
	ctx, stop := context.WithCancel(limited(t))
	defer stop()
	stderr := &watchedBuffer{text: "kill switch tripped", seen: stop}
	code := tl.start(ctx, io.Discard, stderr, "receive", "billing", "orders", "--exec", "grep -q good", "--workers", "1")()
	if code != 1 || !strings.Contains(stderr.String(), "nearly all messages failed") {
		t.Errorf("exit code %d\n%s", code, stderr.String())
	}
}

// A worker ends after a number of failures in a row. A success begins the count again.
func TestExecFailuresInRow(t *testing.T) {
	t.Parallel()
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1")                               // the messages come in their order
	tl.input("bad\nbad\ngood\nbad\nbad\nbad\nlast\n", "send", "orders", "--lines") //nolint:dupword // the messages
	seen := filepath.Join(tl.home, "seen")
	r := tl.run("receive", "billing", "orders", "--exec", `read -r body; echo "$body" >> '`+seen+`'; [ "$body" = good ]`, "--max-failures-in-row", "3", "--max", "7")
	text, err := os.ReadFile(seen)
	if got := strings.Join(strings.Fields(string(text)), " "); err != nil || r.code != 1 || got != "bad bad good bad bad bad" || !strings.Contains(r.stderr, "3 messages failed in a row") { //nolint:dupword // the messages
		t.Errorf("exit code %d after %s (%v): %s", r.code, got, err, r.stderr)
	}
	if got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "--max", "7", "--wait", "1s", "-o", "jsonl").stdout); len(got) != 1 || got[0].BodyText != "last" || got[0].Attempt != 1 {
		t.Errorf("ready messages: %+v, want the last one in attempt 1", got)
	}
}

// The command fails if 20 or more messages failed and none had success, also without the kill
// switch. Fewer failures are verdicts.
func TestExecAllFailed(t *testing.T) {
	for _, c := range []struct{ messages, good, code int }{{19, 0, 0}, {20, 0, 1}, {20, 1, 0}} {
		tl := newTool(t, "--topic", "orders")
		tl.must("send", "orders", "bad", "--count", fmt.Sprint(c.messages))
		if c.good > 0 {
			tl.must("send", "orders", "good")
		}
		r := tl.run("receive", "billing", "orders", "--exec", "grep -q good || exit 75", "--max", fmt.Sprint(c.messages+c.good), "--kill-switch", "0")
		assert.That(t, r.code == c.code && strings.Contains(r.stderr, "nearly all messages failed") == (c.code == 1), "%+v: exit code %d, %s", c, r.code, r.stderr)
	}
}

// A child in the background that holds the output does not make a failure of exit code 0.
func TestExecWithAChildInTheBackground(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--exec", "sleep 1000 & echo done", "--max", "1").is("done\n").notes("1 handled, 0 failed")
}

// The same holds for the programs of --edit and of dead-letters watch.
func TestEditWithAChildInTheBackground(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "1 EUR")
	tl.must("receive", "billing", "orders", "--then", "dead=currency", "--max", "1")
	r := tl.must("dead-letters", "watch", "billing", "--since", "-1h", "--limit", "1", "--exec", "sleep 1000 & cat")
	assert.That(t, (strings.Contains(r.stdout, `"1 EUR"`) || strings.Contains(r.stdout, "message_id")) && !strings.Contains(r.stderr, "failed"), "the watch printed %s%s", r.stdout, r.stderr)
	tl.must("dead-letters", "redrive", "billing", "--edit", "sleep 1000 & sed s/EUR/USD/", "--yes")
	if got := tl.bodies("billing", "orders", 1); len(got) != 1 || got[0] != "1 USD" {
		t.Errorf("the message is %q", got)
	}
}

// After Ctrl-C the command says what it waits for. Programs that do not end in time are ended with
// their children, and the attempt of their message does not count.
func TestExecStops(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	pids := filepath.Join(tl.home, "pids")
	ctx, stop := context.WithCancel(limited(t))
	defer stop()
	var stderr lockedBuffer
	wait := tl.start(ctx, io.Discard, &stderr, "receive", "billing", "orders", "--exec",
		`trap "" TERM; (trap "" TERM; sleep 1000) & echo $! >> '`+pids+`'; echo $$ >> '`+pids+`'; wait; sleep 1000`, "--stop-timeout", "2s")
	all := await(t, pids, 2)
	stop()
	if code := wait(); code != 0 || !strings.Contains(stderr.String(), "waiting up to 2s (--stop-timeout) for 1 program;") {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
	for _, pid := range all {
		ends(t, pid)
	}
	if got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "--max", "1", "-o", "jsonl").stdout); len(got) != 1 || got[0].Attempt != 1 {
		t.Errorf("the next receive got %+v, want the message in attempt 1", got)
	}
}

// Ctrl-C on a terminal, a signal to the process group of the command, does not reach the programs:
// they complete, and their messages are consumed. The second one ends everything at once.
func TestExecAndCtrlC(t *testing.T) {
	bin := installed(t)
	for name, twice := range map[string]bool{"once": false, "twice": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tl := newTool(t, "--topic", "orders")
			tl.must("send", "orders", "a")
			begun, end := filepath.Join(tl.home, "begun"), filepath.Join(tl.home, "end")
			c := exec.CommandContext(limited(t), filepath.Join(bin, "tidegate"), "receive", "billing", "orders", "--exec",
				`echo $$ > '`+begun+`'; while ! [ -e '`+end+`' ]; do sleep 0.01; done; echo completed`)
			c.Env = tl.environ(bin)
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			var stdout lockedBuffer
			c.Stdout = &stdout
			stderr, err := c.StderrPipe()
			assert.Must(t, err)
			assert.Must(t, c.Start())
			pid := await(t, begun, 1)[0]
			interrupt := func() {
				assert.Must(t, syscall.Kill(-c.Process.Pid, syscall.SIGINT))
			}
			interrupt()
			line, err := bufio.NewReader(stderr).ReadString('\n')
			assert.MustThat(t, err == nil && strings.Contains(line, "for 1 program; Ctrl-C again"), "stderr has %q, %v", line, err)
			if twice {
				interrupt()
				_ = c.Wait()
				assert.That(t, !c.ProcessState.Exited(), "it has ended with %v, want the signal", c.ProcessState)
				ends(t, pid)
				return
			}
			assert.Must(t, os.WriteFile(end, nil, 0o600))
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			if err := c.Wait(); err != nil || stdout.String() != "completed\n" {
				t.Errorf("the program printed %q: %v", stdout.String(), err)
			}
			if got := lines[struct{ Acked int }](t, tl.must("group", "list", "-o", "jsonl").stdout); len(got) != 1 || got[0].Acked != 1 {
				t.Errorf("the groups are %+v, want 1 consumed message", got)
			}
		})
	}
}

// The commands that the command line offers do what they say in a shell, also with IDs and names
// that are commands, words or flags themselves. -o name gives xargs one word for each name.
func TestOfferedCommands(t *testing.T) {
	t.Parallel()
	bin := t.TempDir() // a program that prints its arguments
	assert.Must(t, os.WriteFile(filepath.Join(bin, "tidegate"), []byte("#!/bin/sh\nprintf '[%s]' \"$@\"\n"), 0o700))
	dir := t.TempDir()
	paste := func(line, stdin string) string {
		c := exec.CommandContext(t.Context(), "sh", "-c", line)
		c.Dir, c.Env, c.Stdin = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")), strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		assert.That(t, err == nil, "%s: %v", line, err)
		return string(out)
	}
	between := func(text, before, after string) string {
		_, rest, found := strings.Cut(text, before)
		line, _, end := strings.Cut(rest, after)
		assert.That(t, found && end, "%q and %q are not in\n%s", before, after, text)
		return line
	}
	for i, id := range []string{"$(touch x)", "`touch x`", "a b; touch x", "it's", `"`, "a'; touch x; '", `\`, "--yes", "-x y", "a|touch x", "注文 1", "plain-1"} {
		group := fmt.Sprintf("a|touch%d", i) // RocketMQ permits | in names
		tl := newTool(t, "--topic", "orders")
		tl.must("send", "orders", "a", "--id", id)
		tl.must("receive", group, "orders", "--then", "dead=why", "--max", "1")
		show := tl.must("dead-letters", "show", "--", group, id).stderr
		class := strings.TrimSpace(tl.must("dead-letters", "top", group, "-o", "name").stdout)
		top := tl.must("dead-letters", "top", group).stderr
		trace := tl.must("trace", "--", id).stdout
		sent := tl.must("dead-letters", "redrive", group, "--edit", "echo b", "--yes").stderr
		traced := tl.must("trace", "--", id).stdout
		minus := ""
		if strings.HasPrefix(id, "-") {
			minus = "[--]"
		}
		for _, c := range []struct{ line, want string }{
			{between(show, "send it back: ", "; with changes"), "[dead-letters][redrive][" + group + "][--id][" + id + "][--yes]"},
			{between(top, "one of the largest class: ", "\n"), "[dead-letters][show]" + minus + "[" + group + "][" + id + "]"},
			{between(top, "send the class back: ", "\n"), "[dead-letters][redrive][" + group + "][--class][" + class + "]"},
			{between(trace, "because: why; ", " shows it"), "[dead-letters][show]" + minus + "[" + group + "][" + id + "]"},
			{between(sent, ".redrive-1; ", " shows its deliveries"), "[trace]" + minus + "[" + id + ".redrive-1]"},
			{between(traced, "was sent back as message "+id+".redrive-1: ", "\n"), "[trace]" + minus + "[" + id + ".redrive-1]"},
			{"xargs -n 1 tidegate", "[" + id + "]"},
		} {
			line := strings.Trim(c.line, "'") // a mention of a command without quotes
			if strings.HasSuffix(c.line, "'") && !strings.HasPrefix(c.line, "'") {
				line = c.line
			}
			got := paste(line, tl.must("find", "orders", "-o", "name", "--", id).stdout)
			assert.That(t, strings.ReplaceAll(got, "[--id=", "[--id][") == c.want, "%s runs %s, want %s", c.line, got, c.want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("an ID was executed: %v, %v", entries, err)
	}
}

// pythonExample returns the program of the help of receive.
func pythonExample(tl *tool) string {
	tl.t.Helper()
	_, text, found := strings.Cut(tl.must("receive", "--help").stdout, "  import json, sys\n")
	program, _, ended := strings.Cut(text, "\n\n")
	assert.MustThat(tl.t, found && ended, "the help has no example")
	path := filepath.Join(tl.home, "worker.py")
	assert.Must(tl.t, os.WriteFile(path, []byte(strings.ReplaceAll("\n  import json, sys\n"+program+"\n", "\n  ", "\n")), 0o600))
	return "python3 " + path
}

// The example of the help consumes messages, in one process for each worker. A message that fails
// is retried.
func TestExecLinesExample(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "hello", "--count", "99")
	tl.input("\xff", "send", "orders", "-") // has no body_text
	r := tl.must("receive", "billing", "orders", "--exec-lines", pythonExample(tl), "--max", "100", "--workers", "2")
	assert.That(t, strings.Count(r.stderr, "body: hello\n") == 99 && strings.Contains(r.stderr, "100 handled, 1 failed"), "the worker printed %.1000s", r.stderr)
	got := lines[struct {
		Acked        int
		WaitingRetry int `json:"waiting_retry"`
	}](t, tl.must("group", "list", "-o", "jsonl").stdout)
	assert.That(t, len(got) == 1 && got[0].Acked == 99 && got[0].WaitingRetry == 1, "the groups are %+v", got)
}

// The verdicts of a program that stays, and its faults: an answer that is none, for another
// message, or too much, and an end instead of an answer.
func TestExecLinesVerdicts(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("group", "create", "billing", "retry=10m")
	starts := filepath.Join(tl.home, "starts")
	worker := filepath.Join(tl.home, "worker.sh")
	if err := os.WriteFile(worker, []byte(`echo $$ >> '`+starts+`'
while read -r line; do
	id=$(expr "$line" : '{"id":"\([^"]*\)"')
	case "$id" in
	garbage) echo hello;;
	other) echo '{"id":"x","then":"ack"}';;
	unknown) echo '{"id":"unknown","then":"release"}';;
	long) head -c 2000000 /dev/zero | tr '\0' x; echo;;
	dies) echo out of memory >&2; kill -9 $$;;
	fails) echo no database >&2; exit 1;;
	ends) echo '{"id":"ends","then":"ack"}'; exit 0;;
	dead) echo '{"id":"dead","then":"dead","reason":"no such account"}';;
	why) echo '{"id":"why","then":"dead=why not"}';;
	later) echo '{"id":"later","then":"retry=20m"}';;
	*) echo "{\"id\":\"$id\",\"then\":\"ack\"}";;
	esac
done
`), 0o600); err != nil {
		t.Fatal(err)
	}
	ids := []string{"a", "garbage", "b", "other", "c", "unknown", "d", "long", "e", "dies", "fails", "ends", "f", "dead", "why", "later", "g"}
	var in strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&in, `{"id":%q,"body_text":"x"}`+"\n", id)
	}
	tl.must("topic", "create", "lines", "queues=1")
	tl.input(in.String(), "send", "lines", "--jsonl")
	tl.must("receive", "billing", "lines", "--exec-lines", "sh "+worker, "--max", fmt.Sprint(len(ids)), "--kill-switch", "0").notes("17 handled, 9 failed", "out of memory\n")
	if out := tl.must("dead-letters", "list", "billing").stdout; strings.Count(out, "\n") != 3 || !strings.Contains(out, "no such account") || !strings.Contains(out, "why not") {
		t.Errorf("the dead letters are\n%s", out)
	}
	for id, want := range map[string]string{
		"garbage": `the answer hello is not like {"id": ID, "then": "ack"}`, "other": "is for another message", "unknown": "has none of the verdicts", "long": "the program ended before its answer",
		"dies": "the program ended before its answer: ", "fails": "no database (exit code 1)", "later": "by tidegate receive",
	} {
		tl.must("trace", id, "--topic", "lines").prints(want, "retries it")
	}
	for _, id := range []string{"a", "e", "ends", "f", "g"} {
		tl.must("trace", id, "--topic", "lines").prints("it was acknowledged")
	}
	if n := len(await(t, starts, 1)); n != 8 { // the first one, and after garbage, other, unknown, long, dies, fails and ends
		t.Errorf("%d programs, want 8", n)
	}
}

// A program that does not answer its first message ends the command, as one that is not found: it
// ends, closes its output, prints a greeting, or answers with something else.
func TestExecLinesOfAnUnusableProgram(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "50")
	for _, program := range []string{"./no-such-program", "echo no module >&2; exit 1", "true", "read -r x; exec >&-; sleep 1000", "echo ready; cat > /dev/null", "read -r x; echo '{}'; cat > /dev/null"} {
		tl.run("receive", "g"+fmt.Sprint(len(program)), "orders", "--exec-lines", program, "--workers", "2").exits(1).notes("does not answer its first message", "2 handled, 2 failed")
	}
}

// BenchmarkExec prints the rates of two workers with --exec and with --exec-lines, and their ratio.
// The program of --exec is the smallest one; that of --exec-lines is the example of the help.
func BenchmarkExec(b *testing.B) {
	tl := newTool(b, "--topic", "orders")
	rate := func(n int, flag, program string) float64 {
		tl.must("send", "orders", "hello", "--count", fmt.Sprint(n))
		begin := time.Now()
		tl.must("receive", "billing", "orders", flag, program, "--max", fmt.Sprint(n), "--workers", "2")
		return float64(n) / time.Since(begin).Seconds()
	}
	var single, lines []float64
	for b.Loop() {
		single = append(single, rate(500, "--exec", "cat > /dev/null"))
		lines = append(lines, rate(20_000, "--exec-lines", pythonExample(tl)))
	}
	slices.Sort(single)
	slices.Sort(lines)
	b.ReportMetric(single[len(single)/2], "exec-msg/s")
	b.ReportMetric(lines[len(lines)/2], "lines-msg/s")
	b.ReportMetric(lines[len(lines)/2]/single[len(single)/2], "lines/ratio")
	b.ReportMetric(0, "ns/op") // of both: means nothing
}
