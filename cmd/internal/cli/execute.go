package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
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

// usagef returns a UsageError of a command.
func usagef(c *cobra.Command, format string, args ...any) error {
	return UsageError{Err: fmt.Errorf(format, args...), Command: c.CommandPath()}
}

// A commandStatus is the error of a command that has printed its result and ends with an exit code
// of its own.
type commandStatus int

func (s commandStatus) Error() string { return fmt.Sprintf("exit code %d", int(s)) }

// An invalid error is a configuration with faults. Its text has a line for each.
type invalid interface {
	error
	Invalid()
}

// A hinted error has the command or change that cures it.
type hinted interface {
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
		return exitDone
	}
	if status, ok := errors.AsType[commandStatus](err); ok {
		return int(status)
	}
	if pipe, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(pipe, syscall.EPIPE) {
		return exitFailed // the reader of the output has ended
	}
	if _, usage := errors.AsType[UsageError](err); !usage {
		if c, _, ferr := root.Find(args); ferr != nil || c == root {
			err = UsageError{similarCommand(root, err), root.CommandPath()} // an unknown command
		}
	}
	if usage, ok := errors.AsType[UsageError](err); ok && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = usage.Err // a read of the input that Ctrl-C has ended
	}
	code := exitCode(err)
	interrupted := ctx.Err() != nil && code == exitInterrupted
	if by, ok := errors.AsType[Signal](context.Cause(ctx)); interrupted && ok && by.Signal == syscall.SIGTERM {
		code = exitTerminated
	}
	if wantsJSON(ran, args) {
		_ = output.Line(stderr, problemOf(ran, err, code)) // nothing is left to report a failure to
		return code
	}
	if interrupted && !strings.HasPrefix(err.Error(), "interrupted") {
		fmt.Fprintf(stderr, "%s: interrupted\n", root.Name()) // not the call that the interruption met
		return code
	}
	if invalid, ok := errors.AsType[invalid](err); ok {
		fmt.Fprintf(stderr, "%s: the configuration is invalid\n%v\n", root.Name(), invalid)
	} else {
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), indented(text(err)))
	}
	if h := hint(ran, err); h != "" {
		fmt.Fprintln(stderr, indented(h))
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

// hint returns the line that follows an error of a command; empty for none. It names commands for
// the same server.
func hint(ran *cobra.Command, err error) string {
	program := ran.Root().Name()
	doctor := output.Mention(here(ran, program+" doctor"))
	if u, ok := errors.AsType[UsageError](err); ok {
		if strings.Contains(u.Command, " ") {
			return fmt.Sprintf("Run '%s --help' for its arguments and flags.", u.Command)
		}
		return fmt.Sprintf("Run '%s --help' for the commands.", u.Command)
	}
	if h, ok := errors.AsType[hinted](err); ok {
		return h.Hint()
	}
	switch {
	case errors.Is(err, tidegate.ErrTopicNotFound) && program != "tidegate":
		return output.Mention(here(ran, program+" doctor --topic NAME")) + " shows how to create it."
	case errors.Is(err, tidegate.ErrTopicNotFound):
		return "'tidegate topic list' has all topics; 'tidegate topic create NAME' creates one."
	case errors.Is(err, tidegate.ErrUnauthorized) && program != "tidegate":
		return fmt.Sprintf("Give --access-key and --secret-file, for a token of a Pulsar --secret-file alone, or a context with them ('%s context add').", program)
	case errors.Is(err, tidegate.ErrUnauthorized):
		return fmt.Sprintf("Give --access-key and --secret-file, or a context with them ('%s context add').", program)
	case exitCode(err) == exitNoAnswer && notConnected(err) && program != "tidegate":
		return "Does the server run, and is this its address (--amqp, --pulsar, --grpc or a context)? " + doctor + " finds the reason."
	case exitCode(err) == exitNoAnswer && notConnected(err):
		return "Does the server run, and is this its address (--grpc, --http or a context)? 'tidegate serve' starts one on this machine; " + doctor + " finds the reason."
	case exitCode(err) == exitNoAnswer:
		return doctor + " finds the reason why the server does not respond."
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

func problemOf(ran *cobra.Command, err error, exit int) problem {
	p := problem{Type: "about:blank", Title: "FAILED", Detail: text(err), Exit: exit, Hint: hint(ran, err)}
	if title, ok := map[int]string{exitUsage: "USAGE", exitNotFound: "NOT_FOUND", exitNoAnswer: "NO_ANSWER", exitPartly: "PARTLY_DONE"}[exit]; ok {
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

// The exit codes of all commands.
const (
	exitDone         = 0
	exitFailed       = 1   // for a reason that has no code of its own
	exitUsage        = 2   // wrong arguments or configuration, or not supported by this server
	exitNotFound     = 3   // no topic, group or message of this name
	exitNotPermitted = 4   // credentials are missing, wrong, or do not permit it
	exitThrottled    = 5   // the server throttles or has no room
	exitNoAnswer     = 6   // unreachable or timed out
	exitPartly       = 7   // a part was done
	exitInterrupted  = 130 // by Ctrl-C, before the work was done
	exitTerminated   = 143 // by SIGTERM, before the work was done
)

// A Signal is the cause of a context that a signal has ended. It matches context.Canceled.
type Signal struct{ os.Signal }

func (s Signal) Error() string { return s.String() + " signal received" }

// Is reports whether target is context.Canceled.
func (s Signal) Is(target error) bool { return target == context.Canceled }

// ordinary returns nil for the error that the end of ctx caused, and else err. It is for commands
// that go on until a signal, such as --follow and top: for them it is no interruption.
func ordinary(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && exitCode(err) == exitInterrupted {
		return nil
	}
	return err
}

// errPartly marks an error after which a part of the work is done.
var errPartly = errors.New("partly done")

// errUnsupported marks an error of a command that this kind of server does not support.
var errUnsupported = errors.New("not supported by this server")

// exitCode returns the exit code for an error of a command.
func exitCode(err error) int {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	_, usage := errors.AsType[UsageError](err)
	_, invalid := errors.AsType[invalid](err)
	e, answered := errors.AsType[*tidegate.Error](err)
	switch {
	case err == nil:
		return exitDone
	case usage, invalid, is(errUnsupported), answered && e.Code == tidegate.CodeNotImplemented:
		return exitUsage
	case is(errPartly):
		return exitPartly
	case is(tidegate.ErrNotFound, tidegate.ErrTopicNotFound):
		return exitNotFound
	case is(tidegate.ErrUnauthorized, tidegate.ErrForbidden):
		return exitNotPermitted
	case is(tidegate.ErrThrottled):
		return exitThrottled
	case is(context.Canceled):
		return exitInterrupted
	case is(tidegate.ErrInvalid):
		return exitUsage
	case is(tidegate.ErrUnavailable, context.DeadlineExceeded), answered && (e.NotConnected || e.Code == 0):
		return exitNoAnswer
	}
	return exitFailed
}

// section is the annotation with the heading of a flag in the help: Output or Connection. A flag
// without it is one of the command's own.
const section = "tidegate_section"

// usage prints the help of a command without subcommands. The command's own flags come first, then
// those with a section.
func usage(c *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", c.UseLine())
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAliases:\n  %s\n", c.NameAndAliases())
	}
	fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	parts := map[string]*pflag.FlagSet{}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		name := "Flags"
		if s := f.Annotations[section]; len(s) > 0 {
			name = s[0]
		}
		if parts[name] == nil {
			parts[name] = pflag.NewFlagSet(name, pflag.ContinueOnError)
		}
		parts[name].AddFlag(f)
	})
	for _, name := range []string{"Flags", "Output", "Connection"} {
		if p := parts[name]; p != nil && p.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", name, p.FlagUsages())
		}
	}
	_, err := fmt.Fprint(c.OutOrStderr(), b.String())
	return err
}

// flagWords are the words of the Go API in errors of the SDK, and the flags that set the same. A
// phrase stands before the words that it contains.
var flagWords = strings.NewReplacer(
	"set Options.TLS with its issuer in RootCAs, and ServerName if the certificate has another name", "give its issuer with --cacert, or accept any certificate with --tls-skip-verify",
	"set Options.TLS with the certificate and the TLS versions that it requires", "give the certificate that it requires with --cert and --cert-key",
	"check the address, Options.TLS and the certificate", "check the address, --cacert and the certificate",
	"leave Options.TLS nil", "leave out --tls",
	"set Options.TLS", "give --tls",
	"Options.TLS", "--tls",
)

// grpcWords are the words of gRPC around the fault of a connection, which gRPC quotes.
var grpcWords = regexp.MustCompile(`rpc error: code = \w+ desc = connection error: desc = ("transport: (?:[^"\\]|\\.)*")`)

// text returns the text of an error for the users of a command: it names flags and not fields of
// the Go API, and the fault of a connection alone.
func text(err error) string {
	return flagWords.Replace(grpcWords.ReplaceAllStringFunc(err.Error(), func(words string) string {
		fault, err := strconv.Unquote(grpcWords.FindStringSubmatch(words)[1])
		if err != nil {
			return words // not quoted by gRPC
		}
		return strings.TrimPrefix(strings.TrimPrefix(fault, "transport: "), "Error while dialing: ")
	}))
}

// indented indents the further lines of a text. It can be a text of others, which is not to look
// like lines of the command.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }
