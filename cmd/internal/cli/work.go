package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer"
)

const (
	// exitRetry is EX_TEMPFAIL of sysexits.h: the failure is temporary.
	exitRetry = 75

	// defaultStopTimeout leaves a program time to end under the grace period of Kubernetes, 30 s.
	defaultStopTimeout = 25 * time.Second

	// defaultKillSwitch is the share of failures that stops a worker. At this share the program is
	// at fault, or a system that it uses, rather than the messages.
	defaultKillSwitch = 0.9

	// killSwitchWindow is so long because programs can take many seconds for a message.
	killSwitchWindow = 10 * time.Minute

	// fewest is the number of failed messages that make a failure of the command, if none had
	// success. It is that of the kill switch.
	fewest = 20
)

// A worker is one run of receive --exec or --exec-lines.
type worker struct {
	*receiveCommand
	running context.Context //nolint:containedctx // of the consumer; ends with stop
	stop    context.CancelFunc
	begun   atomic.Int64  // messages that came to a handler
	active  atomic.Int64  // programs that run
	proven  chan struct{} // closed when a program of the first messages could be executed
	places  chan struct{} // has a value for each message that counts in --max

	idle chan *liner // programs of --exec-lines without a message

	out sync.Mutex // the outputs of the programs

	mu      sync.Mutex
	tripped bool // the kill switch holds messages back
	record  record
	fault   error // why the worker has stopped
}

// newWork returns a worker that has not begun. The caller ends it by stop.
func newWork(ctx context.Context, r *receiveCommand) *worker {
	w := &worker{
		receiveCommand: r, proven: make(chan struct{}), places: make(chan struct{}, r.max), idle: make(chan *liner, r.workers),
		record: record{workers: r.workers, mostInRow: r.mostInRow},
	}
	w.running, w.stop = context.WithCancel(ctx)
	return w
}

// work runs the program of --exec for each message until ctx ends, or until --max messages are
// handled.
func (r *receiveCommand) work(ctx context.Context, t Transport, sub consumer.Subscription) error {
	// A worker waits for a server that is away, but not for a wrong address.
	if err := r.within(ctx, func(ctx context.Context) error { return t.Ping(ctx, sub.Topic) }); err != nil {
		return err
	}
	w := newWork(ctx, r)
	defer w.stop()
	o := consumer.PushOptions{
		Concurrency:       r.workers,
		MaxBuffered:       r.workers, // a message that waits for a worker needs no lease
		InvisibleDuration: r.lease,
		ShutdownTimeout:   r.stopTimeout,
		KillSwitch:        consumer.KillSwitch{FailureRatio: r.killSwitch, Window: killSwitchWindow},
		OnKillSwitch: func(e consumer.KillSwitchEvent) {
			w.mu.Lock()
			w.tripped = e.Tripped
			w.mu.Unlock()
			if !e.Tripped { // the log has the trip
				r.Note("a message was handled; the kill switch has ended after %s", output.Duration(e.Lasted))
			}
		},
		Logger: slog.New(slog.NewTextHandler(r.Err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if r.execLines != "" {
		o.MaxBuffered = 0 // its programs are fast: a receive for each message would take longer
	}
	p, err := consumer.NewPush(t, sub, w.handle, o)
	if err != nil {
		return r.Usage(err)
	}
	if r.Command.Flags().Changed("wait") && !r.follow {
		go w.stopIdle(r.wait)
	}
	defer context.AfterFunc(ctx, func() {
		if n := w.active.Load(); n > 0 {
			r.Note("stopping: waiting up to %v (--stop-timeout) for %s; Ctrl-C again ends them at once", r.stopTimeout, output.Count(n, "program"))
		}
	})()
	started := time.Now()
	err = p.Run(w.running)
	w.finishAll()
	if w.running.Err() != nil {
		err = nil // Ctrl-C or --max: the ordered end of a worker
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Note("%s handled, %s failed in %s", output.Number(w.record.handled), output.Number(w.record.failed), output.Duration(time.Since(started)))
	switch {
	case err != nil:
		return err
	case w.fault != nil:
		return w.fault
	case w.record.handled < int64(r.expect):
		return fmt.Errorf("%d of %d expected messages arrived: %w", w.record.handled, r.expect, errPartly)
	}
	return w.record.allFailed(w.tripped)
}

// handle is the handler of the consumer.
func (w *worker) handle(ctx context.Context, d *tidegate.Delivery) error {
	n := w.begun.Add(1)
	if !w.admitted(ctx, n) {
		return consumer.Snooze(0) // it is delivered again, with the same attempt
	}
	w.active.Add(1)
	run := w.program
	if w.execLines != "" {
		run = w.line
	}
	e := run(ctx, d)
	w.active.Add(-1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil && e.err != nil {
		w.prove() // else the next messages would wait for it
		if w.max > 0 {
			<-w.places
		}
		return context.Cause(ctx) // the program was stopped: the message comes again
	}
	if fault := w.record.ended(e); fault != nil && w.fault == nil {
		w.fault = fault
		w.stop()
	}
	if w.record.proven {
		w.prove()
	}
	if w.max > 0 && w.record.handled >= int64(w.max) {
		w.stop()
	}
	return e.verdict()
}

// prove notes that a program could be executed. mu is held.
func (w *worker) prove() {
	w.record.proven = true
	select {
	case <-w.proven:
	default:
		close(w.proven)
	}
}

// admitted waits until message number n may be handled, and reports whether it may. As many
// messages as there are workers are handled before it is known whether the program can be executed.
func (w *worker) admitted(ctx context.Context, n int64) bool {
	if n > int64(w.workers) {
		select {
		case <-w.proven:
		case <-w.running.Done():
			return false
		case <-ctx.Done():
			return false
		}
	}
	if w.max > 0 {
		select {
		case w.places <- struct{}{}:
		case <-w.running.Done(): // one too many
			return false
		case <-ctx.Done():
			return false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault == nil
}

// stopIdle stops the worker when no program has begun for a time and none is running.
func (w *worker) stopIdle(wait time.Duration) {
	for last := int64(0); ; {
		if backoff.Sleep(w.running, wait) != nil {
			return
		}
		n := w.begun.Load()
		if n == last && w.active.Load() == 0 {
			w.stop()
			return
		}
		last = n
	}
}

// program runs the program of --exec for one message.
func (w *worker) program(ctx context.Context, d *tidegate.Delivery) ended {
	p := newProgram(ctx, w.exec, consumer.ErrLeaseLost,
		"TIDEGATE_MESSAGE_ID="+d.ID, "TIDEGATE_TOPIC="+d.Topic, "TIDEGATE_TAG="+d.Tag, "TIDEGATE_KEYS="+strings.Join(d.Keys, ","),
		"TIDEGATE_MESSAGE_GROUP="+d.MessageGroup, "TIDEGATE_LITE_TOPIC="+d.LiteTopic, fmt.Sprintf("TIDEGATE_PRIORITY=%d", d.Priority), fmt.Sprintf("TIDEGATE_ATTEMPT=%d", d.Attempt))
	stdout, stderr := &passage{to: unfiltered(w.Out), turn: &w.out}, &passage{to: unfiltered(w.Err), turn: &w.out}
	p.Stdin, p.Stdout, p.Stderr = bytes.NewReader(d.Body), stdout, stderr
	err := p.Run()
	oerr := errors.Join(stdout.flush(), stderr.flush())
	if err == nil {
		return ended{err: oerr}
	}
	how, code := endOf(err)
	reason := cmp.Or(stderr.lastLine(), err.Error())
	if code >= 0 {
		reason = fmt.Sprintf("%s (exit code %d)", reason, code)
	}
	return ended{err: errors.New(reason), unusable: how == unusable, dead: how == exited && code != exitRetry}
}

// ended is the result of the program for one message.
type ended struct {
	err      error         // why the message is not acknowledged
	unusable bool          // the program cannot be executed or answers no message, which is not the fault of the message
	dead     bool          // the message becomes a dead letter
	delay    time.Duration // of the retry, if it is set
	delayed  bool
}

// verdict returns the result of the handler.
func (e ended) verdict() error {
	switch {
	case e.dead:
		return consumer.DeadLetterNow(e.err)
	case e.delayed:
		return consumer.RetryIn(e.delay, e.err)
	}
	return e.err
}

// A record counts the results of a worker's programs, and decides whether the worker goes on.
type record struct {
	workers, mostInRow int

	handled, failed int64
	proven          bool // a program could be executed
	unusable        int  // of the first messages
	inRow           int  // failures since the last success
	last            error
}

// ended notes a result, and returns the reason to stop, if there is one.
func (r *record) ended(e ended) error {
	r.handled++
	if e.err == nil {
		r.proven, r.inRow = true, 0
		return nil
	}
	r.failed++
	r.inRow++
	r.last = e.err
	if !e.unusable {
		r.proven = true
	}
	if !r.proven {
		r.unusable++
	}
	switch {
	case !r.proven && r.unusable >= r.workers:
		return r.unproven()
	case r.mostInRow > 0 && r.inRow >= r.mostInRow:
		return fmt.Errorf("%s failed in a row (--max-failures-in-row), the last with: %w", output.Count(int64(r.inRow), "message"), e.err)
	}
	return nil
}

// unproven is the error of a program that could be executed for no message.
func (r *record) unproven() error {
	return fmt.Errorf("the program cannot be executed, or does not answer its first message: %w; the %s returned to the queue", r.last, map[bool]string{true: "message was", false: "messages were"}[r.handled == 1])
}

// allFailed returns an error if no message was handled with success, or if the kill switch held
// messages back at the end. A few failures alone are verdicts.
func (r *record) allFailed(tripped bool) error {
	if !r.proven && r.unusable > 0 { // there were fewer messages than workers
		return r.unproven()
	}
	if !tripped && (r.handled < fewest || r.failed < r.handled) {
		return nil
	}
	return fmt.Errorf("nearly all messages failed, the last one with: %w", r.last)
}

const (
	// maxHeld bounds the output of a program that waits for the end of the program.
	maxHeld = 256 << 10

	// maxReason bounds the last line of the standard error.
	maxReason = 4 << 10
)

// A passage passes the output of one program on when the program has ended, so that the lines of
// several programs do not mix. A long output passes on earlier, in parts. It is for one goroutine.
type passage struct {
	to     io.Writer
	turn   *sync.Mutex // of all passages
	byLine bool        // it passes each line on when it is complete
	held   bytes.Buffer
	tail   []byte // the last bytes
	err    error
}

// Write keeps the output. It returns no error, which would end the program.
func (p *passage) Write(b []byte) (int, error) {
	p.held.Write(b)
	p.tail = append(p.tail, b...)
	p.tail = p.tail[max(0, len(p.tail)-maxReason):]
	switch end := bytes.LastIndexByte(p.held.Bytes(), '\n'); {
	case p.byLine && end >= 0:
		p.pass(end + 1)
	case p.held.Len() >= maxHeld:
		p.pass(p.held.Len())
	}
	return len(b), nil
}

// pass passes the first n bytes on.
func (p *passage) pass(n int) {
	p.turn.Lock()
	defer p.turn.Unlock()
	if _, err := p.to.Write(p.held.Next(n)); err != nil && p.err == nil {
		p.err = err
	}
}

// flush passes the rest on, and returns the first error.
func (p *passage) flush() error {
	if p.held.Len() > 0 {
		p.pass(p.held.Len())
	}
	return p.err
}

// lastLine returns the last line that has characters.
func (p *passage) lastLine() string { return lastLine(string(p.tail)) }
