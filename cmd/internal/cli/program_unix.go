//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// separate gives the program a session of its own. With a process group alone, a program that reads
// from the terminal would be stopped without end (SIGTTIN); without a terminal it gets an error.
func (p *program) separate() { p.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// signal sends a signal to the program and its children. It returns os.ErrProcessDone if there are
// none.
func (p *program) signal(s syscall.Signal) error {
	err := syscall.Kill(-p.Process.Pid, s)
	if err == syscall.ESRCH {
		return os.ErrProcessDone
	}
	return err
}

func (p *program) kill() error      { return p.signal(syscall.SIGKILL) }
func (p *program) terminate() error { return p.signal(syscall.SIGTERM) }

// childGrace is the time for children in the background to end after the program.
const childGrace = 200 * time.Millisecond

// endChildren ends the processes that the ended program has left. After the end of ctx they have
// the same grace as the program.
func (p *program) endChildren() {
	if p.terminate() != nil {
		return // the usual case: there are none
	}
	wait := childGrace
	if p.later != nil {
		wait = grace
	}
	for until := time.Now().Add(wait); p.left() && time.Now().Before(until) && !p.urgent(); {
		<-time.After(5 * time.Millisecond)
	}
	_ = p.kill() // they may have ended
	_ = p.left()
}

// left reports whether processes of the program are left. If this process is the first one of a
// container, it also removes those that have ended: nobody else does.
func (p *program) left() bool {
	for {
		if pid, err := syscall.Wait4(-p.Process.Pid, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
			return p.signal(0) == nil
		}
	}
}

// followSignals ends all programs with this process when a signal ends it that reaches only the
// session of the terminal.
func followSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGQUIT)
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		signal.Notify(c, syscall.SIGHUP)
	}
	go func() { endBy(<-c) }()
}

// endBy kills all programs, and ends this process by a signal as if it did not handle the signal.
func endBy(s os.Signal) {
	killAll()
	signal.Reset(s)
	if number, ok := s.(syscall.Signal); ok && syscall.Kill(os.Getpid(), number) == nil {
		<-time.After(time.Second) // the signal ends the process before
	}
	os.Exit(1)
}
