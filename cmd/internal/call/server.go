package call

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
)

// Server returns the server of the flags, the environment or the context.
func (c *Call) Server() (connection.Server, error) {
	s, err := connection.Resolve(c.Connection, c.Env, c.Err)
	if err != nil {
		return s, c.Usage(err)
	}
	return s, nil
}

// Admin returns the client of the HTTP API. It ends with the command.
func (c *Call) Admin(ctx context.Context) (*admin.Client, error) {
	if c.Admins != nil {
		return c.Admins, nil
	}
	s, err := c.Server()
	if err != nil {
		return nil, err
	}
	attempts := 0
	if c.noRetry {
		attempts = 1
	}
	a, err := s.Admin(ctx, attempts)
	if errors.Is(err, connection.ErrNoHTTP) {
		return nil, Unsupported(c.Command)
	}
	if err != nil {
		return nil, c.Usage(err)
	}
	c.Admins = a
	return a, nil
}

// Transport returns a connection for messages.
func (c *Call) Transport(ctx context.Context) (connection.Transport, connection.Server, error) {
	s, err := c.Server()
	if err != nil {
		return nil, s, err
	}
	t, err := s.Transport(ctx)
	if err != nil {
		return nil, s, c.Usage(err)
	}
	return t, s, nil
}

// Bounded returns ctx with the --timeout.
func (c *Call) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.Timeout, &timeoutError{c.Timeout})
}

type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string {
	return fmt.Sprintf("no answer within %v (--timeout)", e.after)
}

// Is makes the error one of a deadline, for the exit code.
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// An unsupportedError is the error of a command that needs the HTTP API on a server without it.
type unsupportedError struct{ command, instead string }

// Unsupported is the error of a command that needs the HTTP API, on a server without it. It names
// RocketMQ's own command.
func Unsupported(cmd *cobra.Command) error {
	return &unsupportedError{cmd.CommandPath(), cmd.Annotations[MQAdmin]}
}

// MQAdmin is the annotation with RocketMQ's own command for the same purpose.
const MQAdmin = "mqadmin"

func (e *unsupportedError) Error() string {
	return e.command + ": " + connection.ErrNoHTTP.Error() + "; it works with a tidegate broker"
}

func (e *unsupportedError) Is(target error) bool { return target == command.ErrUnsupported }

// Hint names RocketMQ's command.
func (e *unsupportedError) Hint() string {
	if e.instead == "" {
		return "RocketMQ has no command for it."
	}
	return "On RocketMQ use: mqadmin " + e.instead
}

// ContextFile reads the file of contexts.
func (c *Call) ContextFile() (connection.File, string, error) {
	path, err := connection.FilePath(c.Env)
	if err != nil {
		return connection.File{}, "", err
	}
	f, _, err := connection.ReadFile(path)
	if err != nil {
		err = c.Usage(err)
	}
	return f, path, err
}

// Directories is the environment without the variables of a server.
func (a *App) Directories(name string) string {
	if name == "XDG_CONFIG_HOME" || name == "HOME" {
		return a.Env(name)
	}
	return ""
}
