package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"time"
)

// grace is the time after the request to end in which a program may still end by itself. It is also
// the time that the output of an ended program may stay open, because a child in the background has
// it.
const grace = 2 * time.Second

// A program is a program that the shell runs, with all of its children. On Unix they have a session
// of their own, so that Ctrl-C on the terminal does not reach them, and they end together:
//
//   - when the program ends, its children in the background end too;
//   - when ctx ends, all of them are asked to end by SIGTERM, and killed after 2 s;
//   - when the cause of ctx's end is atOnce, they are killed without a grace.
//
// On Windows only the shell itself is ended.
type program struct {
	*exec.Cmd
	ctx    context.Context //nolint:containedctx // of the process, as in exec.Cmd
	atOnce error
	later  *time.Timer // kills the processes after the grace; set by Cancel
}

// newProgram returns a program that has not started. The end of ctx with the cause atOnce leaves it
// no grace; nil means no such cause. env is added to the environment of this process.
func newProgram(ctx context.Context, text string, atOnce error, env ...string) *program {
	p := &program{Cmd: exec.CommandContext(ctx, "sh", "-c", text), ctx: ctx, atOnce: atOnce}
	p.Env = append(os.Environ(), env...)
	p.WaitDelay = grace
	p.separate()
	p.Cancel = func() error {
		if p.urgent() {
			return p.kill()
		}
		p.later = time.AfterFunc(grace, func() { _ = p.kill() }) // it may have ended
		return p.terminate()
	}
	return p
}

// urgent reports whether the program has to end without a grace.
func (p *program) urgent() bool {
	return p.ctx.Err() != nil && p.atOnce != nil && errors.Is(context.Cause(p.ctx), p.atOnce)
}

// Run starts the program and waits for its end.
func (p *program) Run() error {
	if err := p.Start(); err != nil {
		return err
	}
	return p.Wait()
}

// Start starts the program. The caller then calls Wait.
func (p *program) Start() error {
	if err := p.Cmd.Start(); err != nil {
		return err
	}
	running.add(p)
	signals.Do(followSignals)
	return nil
}

// Wait waits for the end of the program and of its children. An output that a child in the
// background keeps open is no error.
func (p *program) Wait() error {
	err := p.Cmd.Wait()
	p.endChildren()
	if p.later != nil {
		p.later.Stop()
	}
	running.remove(p)
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // the program itself has ended with 0
	}
	return err
}

// signals starts the goroutine of followSignals with the first program.
var signals sync.Once

// A programs is the set of the programs that run.
type programs struct {
	mu    sync.Mutex
	all   map[*program]struct{}
	ended bool
}

var running = programs{all: map[*program]struct{}{}}

func (s *programs) add(p *program) {
	s.mu.Lock()
	s.all[p] = struct{}{}
	ended := s.ended
	s.mu.Unlock()
	if ended {
		_ = p.kill() // this process ends
	}
}

func (s *programs) remove(p *program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, p)
}

// killAll kills all programs that run, and each one that starts later, because this process ends
// without waiting for them.
func killAll() {
	running.mu.Lock()
	running.ended = true
	var all []*program
	for p := range running.all {
		all = append(all, p)
	}
	running.mu.Unlock()
	for _, p := range all {
		_ = p.kill() // it may have ended
	}
}

// The exit codes of programs with a meaning of their own.
const (
	shellNotExecutable = 126 // POSIX, Shell Command Language: exit status for commands
	shellNotFound      = 127

	// A shell adds 128 to the number of the signal that ended its command.
	exitSignal     = 129
	exitLastSignal = 192
)

// A programEnd is the way in which a program has ended.
type programEnd int

// The ends of programs.
const (
	exited    programEnd = iota // with an exit code of its own
	unusable                    // the shell, or the program, was not found or cannot be executed
	signalled                   // by a signal, or by one that the shell reports for the program
	notBegun                    // it could not be started this time
)

// endOf returns the end of a program by the error of Run or Wait, and its exit code; -1 if it has
// none.
func endOf(err error) (programEnd, int) {
	if err == nil {
		return exited, 0
	}
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case !ended && errors.Is(err, exec.ErrNotFound):
		return unusable, -1
	case !ended:
		return notBegun, -1
	case exit.ExitCode() < 0:
		return signalled, -1
	}
	return classify(exit.ExitCode()), exit.ExitCode()
}

// classify returns the end of a program that a shell reports by an exit code.
func classify(code int) programEnd {
	switch {
	case code == shellNotExecutable, code == shellNotFound:
		return unusable
	case code >= exitSignal && code <= exitLastSignal:
		return signalled
	}
	return exited
}
