// Package command runs a tree of commands and turns their errors into texts and exit codes.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// A UsageError is an argument that a command does not understand.
type UsageError struct {
	Err     error
	Command string // with its path: tidegate topic list
}

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// An Invalid error is a configuration with faults. Its text has a line for each.
type Invalid interface {
	error
	Invalid()
}

// Execute runs the command that args name below root. It prints an error to stderr and returns the
// exit code.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return UsageError{err, c.CommandPath()} })
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var invalid Invalid
	wrong := errors.As(err, &invalid)
	if wrong {
		fmt.Fprintf(stderr, "tidegate: the configuration is invalid\n%v\n", invalid)
	} else {
		fmt.Fprintf(stderr, "tidegate: %v\n", err)
	}
	if u, ok := errors.AsType[UsageError](err); ok {
		fmt.Fprintf(stderr, "Run '%s --help' for its arguments and flags.\n", u.Command)
		return 2
	}
	if wrong {
		return 2
	}
	if c, _, ferr := root.Find(args); ferr != nil || c == root {
		fmt.Fprintln(stderr, "Run 'tidegate --help' for the commands.")
		return 2
	}
	return 1
}
