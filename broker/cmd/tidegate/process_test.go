package main

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
	"time"
)

// The test binary is the program when it is told so by the environment.
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
}

// An output is what a process writes while it runs.
type output struct {
	mu    sync.Mutex
	text  strings.Builder
	grown chan struct{} // closed by the next write; nil if nobody waits
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

// await returns the first line after the first from bytes that contains text.
func (o *output) await(t *testing.T, from int, text string) string {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
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
		select {
		case <-grown:
		case <-late:
			t.Fatalf("it did not say %q: %s", text, written[from:])
		}
	}
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t}
	p.cmd = exec.Command(os.Args[0], append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.cmd.Wait()
		t.Fatalf("it did not say that it is ready: %v\n%s", err, p.stderr.String())
	}
	go io.Copy(io.Discard, stdout)
	if _, err := fmt.Sscanf(line, "ready grpc=%s http=%s\n", &p.grpc, &p.http); err != nil {
		t.Fatalf("it said %q: %v", line, err)
	}
	return p
}

// kill ends the process as a crash does.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// stop asks the process to end, and returns its exit code.
func (p *process) stop() int {
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}
