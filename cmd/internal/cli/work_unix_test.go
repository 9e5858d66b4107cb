//go:build unix

package cli

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// newWorker returns a worker without a consumer.
func newWorker(t *testing.T, r receiveCommand) *worker {
	t.Helper()
	r.Call = &Call{App: &App{Out: io.Discard, Err: io.Discard}}
	w := newWork(t.Context(), &r)
	t.Cleanup(func() {
		w.stop()
		w.finishAll()
	})
	return w
}

// A message whose lease is lost does not count in --max: it comes again, and is handled then.
func TestLostLeaseAndMax(t *testing.T) {
	w := newWorker(t, receiveCommand{exec: "test $TIDEGATE_ATTEMPT = 2 || sleep 1000", workers: 1, max: 1})
	lost, lose := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { lose(consumer.ErrLeaseLost) })
	assert.Is(t, "the first delivery", w.handle(lost, &tidegate.Delivery{Attempt: 1}), consumer.ErrLeaseLost)
	ctx, cancel := context.WithTimeout(w.running, 30*time.Second)
	defer cancel()
	if err := w.handle(ctx, &tidegate.Delivery{Attempt: 2}); err != nil || ctx.Err() == nil || w.record.handled != 1 {
		t.Errorf("the second delivery: %v, %d handled", err, w.record.handled)
	}
}

// A message that waits because --max others are being handled is released when its lease is lost.
func TestOneTooManyLosesItsLease(t *testing.T) {
	w := newWorker(t, receiveCommand{exec: "sleep 1000", workers: 2, max: 1})
	running, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.handle(running, &tidegate.Delivery{}) }()
	for w.active.Load() == 0 {
	}
	lost, lose := context.WithCancelCause(t.Context())
	lose(consumer.ErrLeaseLost)
	assert.That(t, w.handle(lost, &tidegate.Delivery{}) != nil, "the second message was handled")
	end()
	<-done
}

// A message that arrives after --max others are handled is released: its program does not run.
func TestOneAfterMax(t *testing.T) {
	w := newWorker(t, receiveCommand{exec: "true", workers: 2, max: 1})
	if err := w.handle(t.Context(), &tidegate.Delivery{}); err != nil || w.running.Err() == nil {
		t.Fatalf("the first message: %v; the worker runs on", err)
	}
	for range 20 {
		if err := w.handle(t.Context(), &tidegate.Delivery{}); err == nil || w.record.handled != 1 {
			t.Fatalf("a message after the last one: %v, %d handled", err, w.record.handled)
		}
	}
}

// A program of --exec-lines that has ended leaves no message waiting, although a child of another
// session holds its output.
func TestLinesWithADaemon(t *testing.T) {
	daemon := "setsid" // of Linux
	if _, err := exec.LookPath(daemon); err != nil {
		daemon = "perl -e 'use POSIX; POSIX::setsid(); exec @ARGV'"
	}
	pid := filepath.Join(t.TempDir(), "pid")
	defer exec.Command("sh", "-c", "kill $(cat "+pid+")").Run() // it holds the output of the tests too
	w := newWorker(t, receiveCommand{execLines: "read line; " + daemon + " sleep 60 & echo $! > " + pid + "; exit 3", workers: 1})
	done := make(chan ended, 1)
	go func() { done <- w.line(t.Context(), &tidegate.Delivery{}) }()
	select {
	case e := <-done:
		assert.That(t, e.err != nil && strings.Contains(e.err.Error(), "exit code 3"), "the result is %+v", e)
	case <-time.After(40 * time.Second):
		t.Error("the message waits for an answer of a program that has ended")
	}
}

// The last answer of a program that ends after it counts.
func TestLastAnswerOfAProgram(t *testing.T) {
	d := &tidegate.Delivery{Message: tidegate.Message{ID: "1"}}
	w := newWorker(t, receiveCommand{execLines: `read line; echo '{"id":"1","then":"ack"}'`, workers: 1})
	for range 200 {
		if e := w.line(t.Context(), d); e.err != nil {
			t.Fatalf("the answer was lost: %v", e.err)
		}
		<-(<-w.idle).exited
	}
}

// A program that closes its output cannot answer any more, although it runs on. It is ended.
func TestProgramThatClosesItsOutput(t *testing.T) {
	w := newWorker(t, receiveCommand{execLines: "read line; exec >&-; sleep 1000", workers: 1})
	if e := w.line(t.Context(), &tidegate.Delivery{}); e.err == nil || !strings.Contains(e.err.Error(), "it closed its output") || !e.unusable {
		t.Errorf("the result is %+v", e)
	}
}
