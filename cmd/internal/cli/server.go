package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/admin"
)

// Server returns the server of the flags, the environment or the context. It is of a kind that the
// program reaches.
func (c *Call) Server() (Server, error) {
	s, err := c.InEffect()
	if err != nil {
		return s, err
	}
	return s, s.Supported()
}

// InEffect returns the server of the flags, the environment or the context, of any kind.
func (c *Call) InEffect() (Server, error) {
	s, err := resolve(c.Connection, c.Env, c.Err, c.Foreign)
	if err != nil {
		return s, c.Usage(err)
	}
	s.Timeout = c.Timeout
	return s, nil
}

// of makes a context the server of the call, without the flags and the environment.
func (c *Call) of(context string) {
	alone, env := *c.App, c.Env
	alone.Env = func(name string) string {
		if name == "XDG_CONFIG_HOME" || name == "HOME" {
			return env(name)
		}
		return "" // the variables of a server
	}
	c.App, c.Connection = &alone, flags{context: context}
}

// Now returns the time of the server, and at most a second less. The clock of this machine can be
// ahead, and items between the two times would be missed. If the server does not report its time,
// Now returns that of this machine.
func (c *Call) Now(ctx context.Context) (time.Time, error) {
	s, err := c.Server()
	if err != nil {
		return time.Time{}, err
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	if at, err := s.Date(ctx); err == nil {
		return at, nil
	}
	return time.Now(), nil
}

// Admin returns the client of the HTTP API. It ends with the command.
func (c *Call) Admin(ctx context.Context) (*admin.Client, error) {
	if c.Admins == nil {
		s, err := c.Server()
		if err != nil {
			return nil, err
		}
		attempts := 0
		if c.noRetry {
			attempts = 1
		}
		a, err := s.Admin(ctx, attempts)
		if errors.Is(err, errNoHTTP) {
			return nil, c.Unsupported()
		}
		if err != nil {
			return nil, c.Usage(err)
		}
		c.Admins = a
	}
	c.address.Store(new(c.Admins.Endpoint()))
	return c.Admins, nil
}

// Transport returns a connection for messages.
func (c *Call) Transport(ctx context.Context) (Transport, Server, error) {
	s, err := c.Server()
	if err != nil {
		return nil, s, err
	}
	t, err := s.Transport(ctx)
	if err != nil {
		return nil, s, c.Usage(err)
	}
	c.address.Store(new(s.Host()))
	return t, s, nil
}

// Bounded returns ctx with the --timeout, for one response of the server that Admin or Transport
// returned last. If the response takes long because there is no connection, a note informs the
// user, once in a call.
func (c *Call) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return c.bounded(ctx, c.used)
}

// used returns the address that the command connects to; empty as long as it is not known.
func (c *Call) used() string {
	if address := c.address.Load(); address != nil {
		return *address
	}
	return ""
}

// within calls work with the context of [Call.Bounded].
func (c *Call) within(ctx context.Context, work func(context.Context) error) error {
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	return work(ctx)
}

// BoundedAt is Bounded for a response of another server, by its host:port.
func (c *Call) BoundedAt(ctx context.Context, address string) (context.Context, context.CancelFunc) {
	return c.bounded(ctx, func() string { return address })
}

func (c *Call) bounded(ctx context.Context, address func() string) (context.Context, context.CancelFunc) {
	e := &timeoutError{after: c.Timeout}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, e)
	return ctx, c.look(ctx, cancel, address, e)
}

// Connecting informs the user as Bounded does, in a command whose responses are not bounded. The
// command calls stop at the first response, and at its end.
func (c *Call) Connecting(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	return c.look(ctx, cancel, c.used, &timeoutError{})
}

// connected is a sequence of which the first element is a response of the server, for which the
// user may wait.
func connected[T any](ctx context.Context, c *Call, all iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		stop := c.Connecting(ctx)
		defer stop()
		for v, err := range all {
			stop()
			if !yield(v, err) {
				return
			}
		}
	}
}

// look begins a look for a request, which notes its result in e. The function that it returns ends
// both.
func (c *Call) look(ctx context.Context, end func(), address func() string, e *timeoutError) (stop func()) {
	look := waitingLook{Out: c.WaitingNotes(), Noted: &c.noted, Address: address, Bound: e.after, Dial: dial}
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := look.Watch(ctx); err != nil {
			e.fault.Store(&err)
		}
	})
	return func() { end(); watching.Wait() }
}

// WaitingNotes returns the writer for notes about a wait. It drops them while the command draws on
// the whole screen, and if a program reads stderr, for which it has one JSON object or nothing.
func (c *Call) WaitingNotes() io.Writer {
	if c.Screen || (c.JSON() || c.Machine) && !is(c.Err) {
		return io.Discard
	}
	return c.Err
}

type timeoutError struct {
	after time.Duration
	fault atomic.Pointer[error] // of the connection
}

func (e *timeoutError) Error() string {
	text := fmt.Sprintf("no response within %v (--timeout)", e.after)
	if fault := e.fault.Load(); fault != nil {
		text += ": " + (*fault).Error()
	}
	return text
}

// Is makes the error one of a deadline, for the exit code.
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// An unsupportedError is the error of a command that needs the HTTP API on a server without it.
type unsupportedError struct{ command, server, hint string }

// Unsupported is the error of a command that needs the HTTP API, on a server without it. It names
// the server's own way.
func (c *Call) Unsupported() error {
	command := strings.Join(strings.Fields(c.Command.CommandPath())[1:], " ")
	e := &unsupportedError{command, "RocketMQ", "RocketMQ has no command for it."}
	if instead := c.Command.Annotations[mqAdmin]; instead != "" {
		e.hint = "On RocketMQ use: mqadmin " + instead
	}
	if s, err := c.InEffect(); err == nil && s.support() != nil {
		e.server = s.foreign().name
		e.hint = e.server + " has no command for it."
		if instead := s.support().Instead[command]; instead != "" {
			e.hint = "On " + e.server + " use: " + instead
		}
	}
	return e
}

// mqAdmin is the annotation with RocketMQ's own command for the same purpose.
const mqAdmin = "mqadmin"

func (e *unsupportedError) Error() string {
	return e.command + " needs the HTTP API of a tidegate broker, which " + e.server + " does not have"
}

func (e *unsupportedError) Is(target error) bool { return target == errUnsupported }

// Hint names the server's own way.
func (e *unsupportedError) Hint() string { return e.hint }

// ContextFile reads the file of contexts.
func (c *Call) ContextFile() (File, string, error) {
	path, err := filePath(c.Env)
	if err != nil {
		return File{}, "", err
	}
	f, _, err := readFile(path)
	if err != nil {
		err = c.Usage(err)
	}
	return f, path, err
}
