package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/assert"
)

// The test binary is the program if the environment has this variable.
const asProgram = "TIDEGATE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(process())
	}
	debug.SetGCPercent(400) // the heap is small: a sixth of the CPU time would go into collecting it
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set("8") // most tests wait for their commands
	}
	os.Exit(m.Run())
}

// A tool runs commands against a broker of its own.
type tool struct {
	t          testing.TB
	home       string // the directories of the user
	grpc, http string
	env        map[string]string
	terminal   bool
}

// A result is the output of a command and its exit code. Its methods report what they do not find,
// with the command and its outputs.
type result struct {
	t              testing.TB
	command        string
	code           int
	stdout, stderr string
}

func (r result) that(holds bool, format string, args ...any) result {
	r.t.Helper()
	assert.That(r.t, holds, "tidegate %s: %s; exit code %d, it prints\n%s%s", r.command, fmt.Sprintf(format, args...), r.code, r.stdout, r.stderr)
	return r
}

// exits checks the exit code.
func (r result) exits(code int) result {
	r.t.Helper()
	return r.that(r.code == code, "want exit code %d", code)
}

// is checks the whole standard output, and noted the whole standard error.
func (r result) is(stdout string) result {
	r.t.Helper()
	return r.that(r.stdout == stdout, "want the output %q", stdout)
}

func (r result) noted(stderr string) result {
	r.t.Helper()
	return r.that(r.stderr == stderr, "want the note %q", stderr)
}

// prints checks that the standard output has texts, notes that the standard error has them, and
// lacks that neither has them.
func (r result) prints(texts ...string) result {
	r.t.Helper()
	for _, text := range texts {
		r.that(strings.Contains(r.stdout, text), "the output lacks %q", text)
	}
	return r
}

func (r result) notes(texts ...string) result {
	r.t.Helper()
	for _, text := range texts {
		r.that(strings.Contains(r.stderr, text), "the notes lack %q", text)
	}
	return r
}

func (r result) lacks(texts ...string) result {
	r.t.Helper()
	for _, text := range texts {
		r.that(!strings.Contains(r.stdout+r.stderr, text), "unwanted is %q", text)
	}
	return r
}

// newTool starts a broker in memory.
func newTool(t testing.TB, flags ...string) *tool {
	t.Helper()
	tl := &tool{t: t, home: t.TempDir()}
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	var ended sync.WaitGroup
	var log bytes.Buffer
	ended.Go(func() {
		defer in.Close()
		args := append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--min-invisible-duration", "10ms", "--min-long-polling", "0s", "--log-level", "error"}, flags...)
		if code := run(ctx, args, &cli.App{In: strings.NewReader(""), Out: in, Err: &log, Env: func(string) string { return "" }}); code != 0 {
			t.Errorf("the broker ended with %d", code)
		}
	})
	t.Cleanup(func() {
		stop()
		ended.Wait()
		if t.Failed() {
			t.Logf("the broker's log:\n%s", log.String())
		}
	})
	line := assert.Value(bufio.NewReader(out).ReadString('\n'))(t)
	ended.Go(func() { _, _ = io.Copy(io.Discard, out) })
	if _, err := fmt.Sscanf(line, "ready grpc=%s http=%s\n", &tl.grpc, &tl.http); err != nil {
		t.Fatalf("the broker printed %q: %v", line, err)
	}
	tl.http = "http://" + tl.http
	tl.env = map[string]string{
		"XDG_CONFIG_HOME": filepath.Join(tl.home, "config"), "XDG_STATE_HOME": filepath.Join(tl.home, "state"), "HOME": tl.home,
		"TIDEGATE_SERVER_GRPC": tl.grpc, "TIDEGATE_SERVER_HTTP": tl.http,
	}
	return tl
}

// hang is far above the time of each command. A command that runs on then ends, and its test fails
// and names it; else the limit of the whole package would end it.
const hang = 3 * time.Minute

// limited returns the context of a test, which ends if a command of the test hangs.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), hang, fmt.Errorf("it runs for %v", hang))
	t.Cleanup(cancel)
	return ctx
}

// input runs a command with a standard input.
func (tl *tool) input(stdin string, args ...string) result {
	tl.t.Helper()
	var stdout, stderr lockedBuffer
	ctx, cancel := context.WithTimeout(tl.t.Context(), hang)
	defer cancel()
	code := run(ctx, args, &cli.App{
		In: strings.NewReader(stdin), Out: &stdout, Err: &stderr, Terminal: tl.terminal,
		Env: func(name string) string { return tl.env[name] },
	})
	if ctx.Err() != nil && tl.t.Context().Err() == nil {
		tl.t.Errorf("tidegate %s: it runs for %v\n%s%s", strings.Join(args, " "), hang, stdout.String(), stderr.String())
	}
	return result{tl.t, strings.Join(args, " "), code, stdout.String(), stderr.String()}
}

func (tl *tool) run(args ...string) result {
	tl.t.Helper()
	return tl.input("", args...)
}

// must runs a command that ends with 0, and returns its result.
func (tl *tool) must(args ...string) result {
	tl.t.Helper()
	return tl.pipe("", args...)
}

// pipe is must with a standard input.
func (tl *tool) pipe(stdin string, args ...string) result {
	tl.t.Helper()
	r := tl.input(stdin, args...)
	assert.MustThat(tl.t, r.code == 0, "tidegate %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	return r
}

// app is the program with the environment of the user and without an input.
func (tl *tool) app(stdout, stderr io.Writer) *cli.App {
	return &cli.App{In: strings.NewReader(""), Out: stdout, Err: stderr, Env: func(name string) string { return tl.env[name] }}
}

// forward returns a proxy for the HTTP API of the broker.
func (tl *tool) forward() *httputil.ReverseProxy {
	tl.t.Helper()
	broker := assert.Value(url.Parse(tl.http))(tl.t)
	return httputil.NewSingleHostReverseProxy(broker)
}

// fails runs a command that ends with a code, and with a text in its error.
func (tl *tool) fails(code int, says string, args ...string) {
	tl.t.Helper()
	tl.run(args...).exits(code).notes(says)
}

// until runs a command until its standard output has a text a number of times.
func (tl *tool) until(times int, text string, args ...string) result {
	tl.t.Helper()
	ctx, interrupt := context.WithCancel(limited(tl.t))
	defer interrupt()
	stdout := &watchedBuffer{text: text, seen: interrupt, times: times}
	var stderr lockedBuffer
	code := run(ctx, args, tl.app(stdout, &stderr))
	return result{tl.t, strings.Join(args, " "), code, stdout.String(), stderr.String()}
}

// start runs a command in the background. The function that it returns waits for its end.
func (tl *tool) start(ctx context.Context, stdout io.Writer, stderr io.Writer, args ...string) (wait func() int) {
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, args, tl.app(stdout, stderr))
	}()
	return func() int { return <-done }
}

// A lockedBuffer is a buffer that several goroutines may write.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
