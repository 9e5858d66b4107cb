package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

var servers = flag.Bool("cluster", false, "start a real RocketMQ; it needs Java and Maven")

// short is a run of short phases.
func short() options {
	return options{phase: 3 * time.Second, port: 18081, version: runner.Versions[len(runner.Versions)-1]}
}

// No accepted message is lost while each server of the cluster is killed and starts again.
func TestCluster(t *testing.T) {
	if !*servers {
		t.Log("-cluster starts the servers")
		return
	}
	o := short()
	var out strings.Builder
	err := run(t.Context(), &out, o)
	t.Log("\n" + out.String())
	assert.Must(t, err)
	for _, w := range []string{"broker-a is killed", "broker-b starts", "proxy-1 is killed", "proxy-2 starts", "drain", "in all", "all were received"} {
		assert.That(t, strings.Contains(out.String(), w), "it does not print %q", w)
	}
	leavesNothing(t, o)
}

// An interrupt ends the servers and removes their data.
func TestInterrupt(t *testing.T) {
	if !*servers {
		t.Log("-cluster starts the servers")
		return
	}
	o := short()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out := &interrupter{cancel: cancel}
	if err := run(ctx, out, o); err == nil || !strings.Contains(err.Error(), errInterrupted.Error()) {
		t.Errorf("the run ended with %v, want %v", err, errInterrupted)
	}
	leavesNothing(t, o)
}

// An interrupter interrupts a run at the end of its first phase.
type interrupter struct {
	text   strings.Builder
	cancel context.CancelCauseFunc
}

const errInterrupted = interruption("interrupted by the test")

type interruption string

func (i interruption) Error() string { return string(i) }

func (i *interrupter) Write(b []byte) (int, error) {
	n, err := i.text.Write(b)
	if strings.Contains(i.text.String(), "\nall run ") {
		i.cancel(errInterrupted)
	}
	return n, err
}

func leavesNothing(t *testing.T, o options) {
	t.Helper()
	if s, err := runner.Open(o.port); err == nil {
		_, pids := s.Processes()
		t.Errorf("the run left %s with the processes %v", s.Dir(), pids)
	}
}

// A phase outside of the limits is an error before anything starts.
func TestPhaseLimits(t *testing.T) {
	for _, phase := range []time.Duration{0, time.Second - 1, 5*time.Minute + 1} {
		o := short()
		o.phase = phase
		if err := run(t.Context(), &strings.Builder{}, o); err == nil || !strings.Contains(err.Error(), "1s to 5m0s") {
			t.Errorf("-phase %v: got %v, want an error with the limits", phase, err)
		}
	}
}

// Without Java the program reports that Java is missing.
func TestMissingJava(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"TMPDIR", "HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, filepath.Join(dir, name))
		assert.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	t.Setenv("PATH", dir)
	t.Setenv("JAVA_HOME", "")
	err := run(t.Context(), &strings.Builder{}, short())
	if err == nil || !strings.Contains(err.Error(), "java is missing: install a Java of version 8 or later") {
		t.Errorf("got %v, want an error that names java and its version", err)
	}
}
