package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The environment variable makes the test binary run as the program.
const asProgram = "TIDEGATE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// A process is a tidegate serve of its own.
type process struct {
	t          *testing.T
	cmd        *exec.Cmd
	grpc, http string
	stderr     output
	ended      chan struct{} // closed when the process has ended and stderr is complete
}

// An output has the text that a process has written so far.
type output struct {
	mu    sync.Mutex
	text  strings.Builder
	grown chan struct{} // closed by the next write; nil without a waiting test
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grown != nil {
		close(o.grown)
		o.grown = nil
	}
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await returns the first line after the first from bytes that contains text. It fails the test if
// the process ends without that line.
func (p *process) await(t *testing.T, from int, text string) string {
	t.Helper()
	o := &p.stderr
	for ended := false; ; {
		o.mu.Lock()
		written := o.text.String()
		if o.grown == nil {
			o.grown = make(chan struct{})
		}
		grown := o.grown
		o.mu.Unlock()
		for line := range strings.Lines(written[from:]) {
			if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
				return line
			}
		}
		assert.MustThat(t, !ended, "it ended without a line with %q: %s", text, written[from:])
		select {
		case <-grown:
		case <-p.ended:
			ended = true // it has written everything
		}
	}
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = &p.stderr
	stdout, out := io.Pipe()
	p.cmd.Stdout = out
	assert.Must(t, p.cmd.Start())
	t.Cleanup(func() { p.kill() })
	go func() {
		defer close(p.ended)
		p.cmd.Wait() // for its output too
		out.Close()
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		<-p.ended
		t.Fatalf("it did not report that it is ready: %v\n%s", err, p.stderr.String())
	}
	go io.Copy(io.Discard, stdout)
	if _, err := fmt.Sscanf(line, "ready grpc=%s http=%s\n", &p.grpc, &p.http); err != nil {
		t.Fatalf("its first line is %q: %v", line, err)
	}
	return p
}

// kill ends the process as a crash does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// stop signals the process to end, and returns its exit code.
func (p *process) stop() int {
	p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}
