// Package command runs a tree of commands and turns their errors into texts and exit codes.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/nearest"
)

// A UsageError is an argument that a command does not understand.
type UsageError struct {
	Err     error
	Command string // with its path: tidegate topic list
}

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Usagef returns a UsageError of a command.
func Usagef(c *cobra.Command, format string, args ...any) error {
	return UsageError{Err: fmt.Errorf(format, args...), Command: c.CommandPath()}
}

// A Status is the error of a command that has printed its result and ends with an exit code of its
// own.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit code %d", int(s)) }

// An Invalid error is a configuration with faults. Its text has a line for each.
type Invalid interface {
	error
	Invalid()
}

// A Hinted error has the command or change that cures it.
type Hinted interface {
	error
	Hint() string
}

// Execute runs the command that args name below root. It prints an error to stderr and returns the
// exit code. With the flag -o json of the command, the error is one JSON object.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return UsageError{similarFlag(c, err), c.CommandPath()} })
	ran, err := root, mistyped(root, args)
	if err == nil {
		ran, err = root.ExecuteContextC(ctx)
	}
	if err == nil {
		return ExitDone
	}
	if status, ok := errors.AsType[Status](err); ok {
		return int(status)
	}
	if pipe, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(pipe, syscall.EPIPE) {
		return ExitFailed // the reader of the output has ended
	}
	if _, usage := errors.AsType[UsageError](err); !usage {
		if c, _, ferr := root.Find(args); ferr != nil || c == root {
			err = UsageError{similarCommand(root, err), root.CommandPath()} // an unknown command
		}
	}
	if usage, ok := errors.AsType[UsageError](err); ok && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = usage.Err // a read of the input that Ctrl-C has ended
	}
	code := ExitCode(err)
	interrupted := ctx.Err() != nil && code == ExitInterrupted
	if by, ok := errors.AsType[Signal](context.Cause(ctx)); interrupted && ok && by.Signal == syscall.SIGTERM {
		code = ExitTerminated
	}
	if wantsJSON(ran, args) {
		_ = output.Line(stderr, problemOf(root, err, code)) // nothing is left to report a failure to
		return code
	}
	if interrupted && !strings.HasPrefix(err.Error(), "interrupted") {
		fmt.Fprintf(stderr, "%s: interrupted\n", root.Name()) // not the call that the interruption met
		return code
	}
	if invalid, ok := errors.AsType[Invalid](err); ok {
		fmt.Fprintf(stderr, "%s: the configuration is invalid\n%v\n", root.Name(), invalid)
	} else {
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), Indented(Text(err)))
	}
	if h := hint(root, err); h != "" {
		fmt.Fprintln(stderr, Indented(h))
	}
	return code
}

// similarFlag adds the most similar flag to the error of an unknown one.
func similarFlag(c *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	near, name := nearest.Name(unknown.GetSpecifiedName(), names), unknown.GetSpecifiedName()
	for _, n := range names {
		if near == "" && len(name) > 2 && (strings.HasPrefix(n, name) || strings.HasPrefix(name, n)) {
			near = n
		}
	}
	if near == "" || len(name) < 2 {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, near)
}

// similarCommand is the error of an unknown command in one line, as those below the root have it.
func similarCommand(root *cobra.Command, err error) error {
	var name string
	if _, serr := fmt.Sscanf(err.Error(), "unknown command %q", &name); serr != nil {
		return err
	}
	text := fmt.Sprintf("unknown command %q for %q", name, root.Name())
	if near := root.SuggestionsFor(name); len(near) > 0 {
		text += fmt.Sprintf("; did you mean '%s %s'?", root.Name(), near[0])
	}
	return errors.New(text)
}

// mistyped returns the error of a command that does not exist below another one, for a request of
// its help: cobra would print the help of the one above.
func mistyped(root *cobra.Command, args []string) error {
	c, rest, err := root.Find(args)
	help := func(arg string) bool { return arg == "--help" || arg == "-h" }
	if err == nil && c.HasSubCommands() && c != root && c.Args != nil && slices.ContainsFunc(rest, help) {
		for _, arg := range rest {
			if !strings.HasPrefix(arg, "-") {
				return c.Args(c, []string{arg})
			}
		}
	}
	return nil // cobra reports the others
}

// wantsJSON reports whether a command has -o json, also if a faulty flag stands before it.
func wantsJSON(ran *cobra.Command, args []string) bool {
	if f := ran.Flags().Lookup("output"); f != nil && strings.HasPrefix(f.Value.String(), "json") {
		return true
	}
	line := " " + strings.Join(args, " ") + " "
	return strings.Contains(line, " -o json") || strings.Contains(line, " --output json") || strings.Contains(line, " --output=json") || strings.Contains(line, " -ojson")
}

// hint returns the line that follows an error; empty for none.
func hint(root *cobra.Command, err error) string {
	if u, ok := errors.AsType[UsageError](err); ok {
		if strings.Contains(u.Command, " ") {
			return fmt.Sprintf("Run '%s --help' for its arguments and flags.", u.Command)
		}
		return fmt.Sprintf("Run '%s --help' for the commands.", u.Command)
	}
	if h, ok := errors.AsType[Hinted](err); ok {
		return h.Hint()
	}
	switch {
	case errors.Is(err, tidegate.ErrTopicNotFound) && root.Name() != "tidegate":
		return fmt.Sprintf("'%s doctor --topic NAME' shows how to create it.", root.Name())
	case errors.Is(err, tidegate.ErrTopicNotFound):
		return "'tidegate topic list' has all topics; 'tidegate topic create NAME' creates one."
	case errors.Is(err, tidegate.ErrUnauthorized):
		return fmt.Sprintf("Give --access-key and --secret-file, or a context with them ('%s context add').", root.Name())
	case ExitCode(err) == ExitNoAnswer && notConnected(err) && root.Name() != "tidegate":
		return fmt.Sprintf("Does the server run, and is this its address (--amqp, --grpc or a context)? '%s doctor' finds the reason.", root.Name())
	case ExitCode(err) == ExitNoAnswer && notConnected(err):
		return "Does the server run, and is this its address (--grpc, --http or a context)? 'tidegate serve' starts one on this machine; 'tidegate doctor' finds the reason."
	case ExitCode(err) == ExitNoAnswer:
		return fmt.Sprintf("'%s doctor' finds the reason why the server does not respond.", root.Name())
	}
	return ""
}

// notConnected reports whether a request had no connection to the server.
func notConnected(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	return ok && e.NotConnected
}

// A problem is an error as JSON. Its fields are those of the HTTP API's problems, with exit and
// hint.
type problem struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	Detail      string `json:"detail"`
	Exit        int    `json:"exit"`
	Hint        string `json:"hint,omitempty"`
	Code        int    `json:"code,omitempty"`
	ReplyCode   int    `json:"reply_code,omitempty"`
	RetryAfter  string `json:"retry_after,omitempty"`
	MaybeStored bool   `json:"maybe_stored,omitempty"`
}

func problemOf(root *cobra.Command, err error, exit int) problem {
	p := problem{Type: "about:blank", Title: "FAILED", Detail: Text(err), Exit: exit, Hint: hint(root, err)}
	if title, ok := map[int]string{ExitUsage: "USAGE", ExitNotFound: "NOT_FOUND", ExitNoAnswer: "NO_ANSWER", ExitPartly: "PARTLY_DONE"}[exit]; ok {
		p.Title = title
	}
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		p.MaybeStored = e.MaybeStored
		if e.Code != 0 {
			p.Title, p.Code, p.ReplyCode = e.Code.String(), int(e.Code), e.ReplyCode()
		}
		if e.RetryAfter > 0 {
			p.RetryAfter = e.RetryAfter.Round(time.Millisecond).String()
		}
	}
	return p
}
