package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

const (
	// maxAnswer is the longest line of an answer in bytes.
	maxAnswer = 1 << 20

	// inputGrace is the time in which a program ends after the end of its input.
	inputGrace = time.Second
)

var (
	// errOutOfStep is the fault of a program whose answers do not belong to its messages.
	errOutOfStep = errors.New("the program is out of step")

	// errKilled ends a program without a grace: it may work on a message that others get.
	errKilled = errors.New("the program is killed")
)

// A liner is a program of --exec-lines. It gets a message as a line and answers with a line. It is
// for one message at a time.
type liner struct {
	program  *program
	end      context.CancelCauseFunc
	input    io.WriteCloser
	requests chan []byte
	answers  chan []byte   // closed after the end of the program
	exited   chan struct{} // closed when the program has ended
	err      error         // of the program; valid after exited is closed
	closed   bool          // it was ended because it closed its output; valid after exited is closed
	stderr   *passage
	answered bool
}

// start starts a program.
func (w *worker) start() (*liner, error) {
	ctx, end := context.WithCancelCause(context.Background()) // it lives on after its message
	l := &liner{
		program: newProgram(ctx, w.execLines, errKilled), end: end,
		requests: make(chan []byte), answers: make(chan []byte, 1), exited: make(chan struct{}),
		stderr: &passage{to: unfiltered(w.Err), turn: &w.out, byLine: true},
	}
	var err error
	if l.input, err = l.program.StdinPipe(); err != nil {
		end(nil)
		return nil, err
	}
	out, in, err := os.Pipe() // a file: the end of the program does not wait for its children
	if err != nil {
		end(nil)
		return nil, err
	}
	l.program.Stdout, l.program.Stderr = in, l.stderr
	if err := l.program.Start(); err != nil {
		end(nil)
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	_ = in.Close() // the program has it
	go func() {
		l.err = l.program.Wait()
		// A process of another session can hold the output. Answers that are written are read.
		_ = out.SetReadDeadline(time.Now().Add(inputGrace)) // Windows has no deadlines of pipes
		_ = l.stderr.flush()                                // as the rest of its notes
		close(l.exited)
	}()
	go l.write()
	go l.read(out)
	return l, nil
}

// write writes the messages. The program may end before it has read one.
func (l *liner) write() {
	for {
		select {
		case line := <-l.requests:
			_, _ = l.input.Write(line) // the end of the program has the reason
		case <-l.exited:
			return
		}
	}
}

// read reads the answers.
func (l *liner) read(out *os.File) {
	defer close(l.answers)
	defer out.Close()
	in := bufio.NewScanner(out)
	in.Buffer(nil, maxAnswer)
	for in.Scan() {
		answer := bytes.Clone(in.Bytes())
		select {
		case l.answers <- answer:
			continue // also the last one of a program that has ended
		default:
		}
		select {
		case l.answers <- answer:
		case <-l.exited:
			return
		}
	}
	if in.Err() != nil {
		l.end(errKilled)
	}
	select {
	case <-l.exited:
	case <-time.After(inputGrace): // it runs on and cannot answer any more
		l.closed = true
		l.end(nil)
		<-l.exited
	}
}

// errEnded is the error of a program that has ended instead of an answer.
var errEnded = errors.New("the program has ended")

// ask passes a message to the program and returns its answer.
func (l *liner) ask(ctx context.Context, line []byte) ([]byte, error) {
	select {
	case stray, ok := <-l.answers:
		if !ok {
			return nil, errEnded
		}
		return nil, fmt.Errorf("%w: the line %s belongs to no message", errOutOfStep, output.Cut(string(stray), 100))
	default:
	}
	select {
	case l.requests <- line:
	case <-l.exited:
		return nil, errEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case answer, ok := <-l.answers:
		if !ok {
			return nil, errEnded
		}
		return answer, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ending describes the end of the program. It waits for it.
func (l *liner) ending() error {
	<-l.exited
	_, code := endOf(l.err)
	text := ""
	switch {
	case l.closed:
		text = "it closed its output"
	case l.err != nil:
		text = l.err.Error()
	}
	reason := cmp.Or(l.stderr.lastLine(), text, "without an error")
	return fmt.Errorf("the program ended before its answer: %s (exit code %d)", reason, code)
}

// finish ends a program that has no message: by the end of its input, and then by a signal.
func (l *liner) finish() {
	_ = l.input.Close() // the program may have ended
	grace := time.NewTimer(inputGrace)
	defer grace.Stop()
	select {
	case <-l.exited:
	case <-grace.C:
	}
	l.end(nil)
	<-l.exited
}

// line passes a message to an idle program, or to a new one.
func (w *worker) line(ctx context.Context, d *tidegate.Delivery) ended {
	var text bytes.Buffer
	if err := output.Line(&text, httpapi.DeliveryOf(d, true, time.Now())); err != nil {
		return ended{err: err}
	}
	for {
		var l *liner
		select {
		case l = <-w.idle:
		default:
		}
		fresh := l == nil
		if fresh {
			var err error
			if l, err = w.start(); err != nil {
				how, _ := endOf(err)
				return ended{err: err, unusable: how == unusable}
			}
		}
		answer, err := l.ask(ctx, text.Bytes())
		switch {
		case errors.Is(err, errEnded):
			<-l.exited
			if !fresh && l.err == nil {
				continue // it has ended in order after its last message: the next one has a new program
			}
			l.end(nil)
			return ended{err: l.ending(), unusable: !l.answered}
		case errors.Is(err, errOutOfStep) && !l.answered, err != nil && ctx.Err() != nil:
			l.end(errKilled)
			<-l.exited // no process works on the message when it is delivered again
			return ended{err: err, unusable: ctx.Err() == nil}
		case err != nil: // a line too many after the last answer: not the fault of this message
			w.Note("%v; the program is started again", err)
			l.end(errKilled)
			<-l.exited
			continue
		}
		e, err := verdictOf(answer, d.ID)
		if err != nil {
			l.end(errKilled)
			<-l.exited
			return ended{err: err, unusable: !l.answered}
		}
		l.answered = true
		w.idle <- l
		return e
	}
}

// verdictOf reads the answer of a program for a message.
func verdictOf(line []byte, id string) (ended, error) {
	var a struct {
		ID     string `json:"id"`
		Then   string `json:"then"`
		Reason string `json:"reason"`
	}
	shown := output.Cut(string(line), 200)
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return ended{}, fmt.Errorf("the answer %s is not like {\"id\": ID, \"then\": \"ack\"}: %w", shown, err)
	}
	if a.ID != id {
		return ended{}, fmt.Errorf("the answer %s is for another message", shown)
	}
	f, err := parseFate(a.Then)
	if err != nil || f.name == "release" {
		return ended{}, fmt.Errorf("the answer %s has none of the verdicts ack, retry, retry=TIME, dead and dead=REASON", shown)
	}
	if f.name == "ack" {
		return ended{}, nil
	}
	e := ended{err: errors.New(cmp.Or(a.Reason, f.reason)), dead: f.name == "dead"}
	if f.name == "retry" && f.delay >= 0 {
		e.delay, e.delayed = f.delay, true
	}
	return e, nil
}

// finishAll ends the idle programs.
func (w *worker) finishAll() {
	var all sync.WaitGroup
	for {
		select {
		case l := <-w.idle:
			all.Go(l.finish)
		default:
			all.Wait()
			return
		}
	}
}
