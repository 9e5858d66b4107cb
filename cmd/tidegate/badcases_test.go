package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidegate/tidegate/cmd/internal/call"
)

// After Ctrl-C, receive --then release has released its messages at once, and prints the number of
// printed messages.
func TestInterruptedReceive(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "3")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	stdout := &watchedBuffer{text: `"offset"`, seen: interrupt}
	var stderr lockedBuffer
	code := run(ctx, []string{"receive", "billing", "orders", "--then", "release", "--max", "10", "--wait", "1m", "--lease", "10m", "-o", "jsonl"}, &call.App{
		In: strings.NewReader(""), Out: stdout, Err: &stderr, Env: func(name string) string { return tl.env[name] },
	})
	printed := strings.Count(stdout.String(), "\n")
	if code != 130 || !strings.Contains(stderr.String(), fmt.Sprintf("interrupted after %d message", printed)) {
		t.Errorf("exit code %d after %d messages, %s", code, printed, stderr.String())
	}
	if got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "--max", "3", "--wait", "1s", "-o", "jsonl").stdout); len(got) != 3 || got[0].Attempt != 1 {
		t.Errorf("the next receive got %+v, want 3 messages with attempt 1", got)
	}
}

// After Ctrl-C, receive --then ack has acknowledged exactly the messages that it printed.
func TestInterruptedAcknowledgements(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a", "--count", "300")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	stdout := &watchedBuffer{text: "\n", seen: interrupt}
	var stderr lockedBuffer
	code := run(ctx, []string{"receive", "billing", "orders", "--then", "ack", "--max", "300", "-o", "name"}, &call.App{
		In: strings.NewReader(""), Out: stdout, Err: &stderr, Env: func(name string) string { return tl.env[name] },
	})
	printed := strings.Count(stdout.String(), "\n")
	if code != 130 || printed == 300 || !strings.Contains(stderr.String(), fmt.Sprintf("interrupted after %d message", printed)) {
		t.Errorf("exit code %d after %d messages, %s", code, printed, stderr.String())
	}
	got := lines[struct{ Acked int }](t, tl.must("group", "list", "-o", "jsonl").stdout)
	if len(got) != 1 || got[0].Acked != printed {
		t.Errorf("%d messages are printed, and the groups have %+v", printed, got)
	}
}

// If the reader of a pipe ends, the command ends without an error text and releases the messages
// that it has not printed.
func TestClosedPipe(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
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
			if out := tl.must("dead-letters", "list", "billing", "-o", "name").stdout; out != "" {
				t.Errorf("dead letters are left: %s", out)
			}
			got := tl.bodies("billing", "orders", 2*n)
			slices.Sort(got)
			if len(got) != n || len(slices.Compact(got)) != n {
				t.Errorf("%d messages came back, %d different ones, want %d", len(got), len(slices.Compact(got)), n)
			}
		})
	}
}
