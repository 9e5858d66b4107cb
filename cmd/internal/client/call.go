package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/nearest"
)

// A call is one execution of a command, with its flags.
type call struct {
	*App
	command *cobra.Command
	args    []string

	connection connection.Flags
	format     output.FormatFlag
	columns    []string
	noHeaders  bool
	sort       string
	limit      int
	times      output.TimeFlag
	timeout    time.Duration
	noRetry    bool
	yes        string
	dryRun     bool

	admins *admin.Client // opened by admin
}

// leaf completes a command that uses a server: with its arguments, the flags of the output and of
// the connection. Args are names such as TOPIC; one in brackets is optional, and one with "..." at
// its end may come several times.
func (a *App) leaf(cmd *cobra.Command, args []string, work run) *cobra.Command {
	return a.remote(cmd, args, work).command
}

// remote is leaf for a command with further flags in the call.
func (a *App) remote(cmd *cobra.Command, args []string, work run) *call {
	c := a.local(cmd, args, work)
	f := cmd.Flags()
	c.connection.Register(f)
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "bound of one answer of the server")
	f.BoolVar(&c.noRetry, "no-retry", false, "do not repeat failed requests")
	for _, name := range []string{"context", "http", "grpc", "access-key", "secret-file", "tls", "cacert", "cert", "cert-key", "tls-skip-verify", "timeout", "no-retry"} {
		_ = f.SetAnnotation(name, command.Section, []string{"Connection"}) // the flag exists
	}
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { // the flag exists
		f, _, err := c.contextFile()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return f.Names(), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.ValidArgsFunction = func(_ *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return c.complete(args, given, prefix), cobra.ShellCompDirectiveNoFileComp
	}
	return c
}

// local completes a command without a server.
func (a *App) local(cmd *cobra.Command, args []string, work run) *call {
	c := &call{App: a, command: cmd, format: output.FormatFlag{Format: output.Table}, times: output.TimeFlag{TimeStyle: output.Relative}}
	if !a.Terminal {
		c.times.TimeStyle = output.UTC
	}
	if len(args) > 0 {
		cmd.Use += " " + strings.Join(args, " ")
	}
	cmd.Args = exactly(args)
	cmd.SetUsageFunc(command.Usage)
	f := cmd.Flags()
	f.VarP(&c.format, "output", "o", "`format`: table, wide, json, jsonl or name")
	f.StringSliceVar(&c.columns, "columns", nil, "`names` of the columns of a table")
	f.BoolVar(&c.noHeaders, "no-headers", false, "print no header")
	f.StringVar(&c.sort, "sort", "", "`column` to sort by, descending with a leading -")
	f.IntVar(&c.limit, "limit", 0, "most rows of a list; 0 means all")
	f.Var(&c.times, "time", "`form` of times in tables: relative, local or utc")
	for _, name := range []string{"output", "columns", "no-headers", "sort", "limit", "time"} {
		_ = f.SetAnnotation(name, command.Section, []string{"Output"})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		c.args = args
		defer func() {
			if c.admins != nil {
				err = errors.Join(err, c.admins.Close())
			}
		}()
		return work(cmd.Context(), c)
	}
	return c
}

// destructive adds the flags of a command that cannot be undone.
func (c *call) destructive() *cobra.Command {
	f := c.command.Flags()
	f.StringVar(&c.yes, "yes", "", "do it without a question; on a protected context --yes=`NAME` with the name of the subject")
	f.Lookup("yes").NoOptDefVal = "true"
	f.BoolVar(&c.dryRun, "dry-run", false, "print what would be done, and do nothing")
	return c.command
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := nearest.Name(args[0], names); near != "" {
		return command.Usagef(cmd, "unknown command %q for %q; did you mean '%s %s'?", args[0], cmd.CommandPath(), cmd.CommandPath(), near)
	}
	return command.Usagef(cmd, "unknown command %q for %q; the commands are %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
}

// exactly checks the number of arguments by their names.
func exactly(names []string) cobra.PositionalArgs {
	least, most := 0, len(names)
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			least++
		}
		if strings.HasSuffix(strings.TrimSuffix(n, "]"), "...") {
			most = -1
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return command.Usagef(cmd, "%s is missing", names[len(args)])
		case most >= 0 && len(args) > most:
			return command.Usagef(cmd, "the argument %q is too many; the command takes %s", args[most], or(strings.Join(names, " "), "no argument"))
		}
		for i, arg := range args {
			if arg == "" && i < least {
				return command.Usagef(cmd, "%s is empty", names[i])
			}
		}
		return nil
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func (c *call) server() (connection.Server, error) {
	s, err := connection.Resolve(c.connection, c.Env, c.Err)
	if err != nil {
		return s, command.UsageError{Err: err, Command: c.command.CommandPath()}
	}
	return s, nil
}

// admin returns the client of the HTTP API. It ends with the command.
func (c *call) admin(ctx context.Context) (*admin.Client, error) {
	if c.admins != nil {
		return c.admins, nil
	}
	s, err := c.server()
	if err != nil {
		return nil, err
	}
	attempts := 0
	if c.noRetry {
		attempts = 1
	}
	a, err := s.Admin(ctx, attempts)
	if errors.Is(err, connection.ErrNoHTTP) {
		return nil, unsupported(c.command)
	}
	if err != nil {
		return nil, command.UsageError{Err: err, Command: c.command.CommandPath()}
	}
	c.admins = a
	return a, nil
}

// transport returns a connection for messages.
func (c *call) transport(ctx context.Context) (connection.Transport, connection.Server, error) {
	s, err := c.server()
	if err != nil {
		return nil, s, err
	}
	t, err := s.Transport(ctx)
	if err != nil {
		return nil, s, command.UsageError{Err: err, Command: c.command.CommandPath()}
	}
	return t, s, nil
}

// bounded returns ctx with the --timeout.
func (c *call) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.timeout, &timeoutError{c.timeout})
}

type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string {
	return fmt.Sprintf("no answer within %v (--timeout)", e.after)
}

// Is makes the error one of a deadline, for the exit code.
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// options are the flags of the output.
func (c *call) options() output.Options {
	return output.Options{Format: c.format.Format, Columns: c.columns, NoHeaders: c.noHeaders, Sort: c.sort, Limit: c.limit, Times: c.times.TimeStyle}
}

// json reports whether the result is JSON.
func (c *call) json() bool { return c.format.Format == output.JSON || c.format.Format == output.JSONL }

// show prints one subject: as JSON document, or as names and values.
func (c *call) show(document any, name string, fields []output.Field) error {
	switch c.format.Format {
	case output.JSON:
		return output.Encode(c.Out, document)
	case output.JSONL:
		return output.Line(c.Out, document)
	case output.Name:
		_, err := fmt.Fprintln(c.Out, output.Safe(name))
		return err
	}
	return output.Fields(c.Out, c.options(), fields)
}

// printList prints a list.
func printList[T any](c *call, l output.List[T]) error {
	if err := l.Print(c.Out, c.Err, c.options()); err != nil {
		return command.UsageError{Err: err, Command: c.command.CommandPath()}
	}
	return nil
}

// note prints a line to stderr.
func (c *call) note(format string, args ...any) { fmt.Fprintf(c.Err, format+"\n", args...) }

// confirm asks for what cannot be undone: a question on a terminal, --yes without one, and
// --yes=NAME on a protected context. It returns nil if the command may go on.
func (c *call) confirm(question, name string) error {
	s, err := c.server()
	if err != nil {
		return err
	}
	switch {
	case s.Protect && c.yes == name:
		return nil
	case s.Protect:
		return command.Usagef(c.command, "the context %q is protected: repeat the command with --yes=%s", s.Name, name)
	case c.yes == "true" || c.yes == name:
		return nil
	case c.yes != "":
		return command.Usagef(c.command, "--yes=%s does not name %s", c.yes, name)
	case !c.Terminal:
		return command.Usagef(c.command, "without a terminal this needs --yes; --dry-run shows what it would do")
	}
	fmt.Fprintf(c.Err, "%s [y/N] ", question)
	var answer string
	if _, err := fmt.Fscanln(c.In, &answer); err != nil && !errors.Is(err, io.EOF) && err.Error() != "unexpected newline" {
		return err
	}
	if answer != "y" && answer != "yes" {
		return errors.New("not done")
	}
	return nil
}

// An unsupportedError is the error of a command that needs the HTTP API on a server without it.
type unsupportedError struct{ command, instead string }

func unsupported(cmd *cobra.Command) error {
	return &unsupportedError{cmd.CommandPath(), cmd.Annotations[mqadmin]}
}

// mqadmin is the annotation with RocketMQ's own command for the same purpose.
const mqadmin = "mqadmin"

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

// Local completes a command of another package that uses no server and prints one subject: the
// document for JSON, and names with values.
func (a *App) Local(cmd *cobra.Command, subject func() (document any, fields [][2]string)) *cobra.Command {
	return a.local(cmd, nil, func(_ context.Context, c *call) error {
		document, pairs := subject()
		fields := make([]output.Field, len(pairs))
		for i, p := range pairs {
			fields[i] = output.Field{Name: p[0], Value: p[1]}
		}
		return c.show(document, pairs[0][1], fields)
	}).command
}

// again returns the command with its arguments and flags, for a shell. Further values replace those
// of the flags.
func (c *call) again(further map[string]string) string {
	parts := strings.Fields(c.command.CommandPath())
	for _, arg := range c.args {
		parts = append(parts, quoted(arg))
	}
	c.command.Flags().Visit(func(f *pflag.Flag) {
		if _, replaced := further[f.Name]; replaced {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				parts = append(parts, "--"+f.Name+"="+quoted(v))
			}
			return
		}
		parts = append(parts, "--"+f.Name+"="+quoted(f.Value.String()))
	})
	for name, value := range sorted(further) {
		parts = append(parts, "--"+name+"="+quoted(value))
	}
	return strings.Join(parts, " ")
}

// quoted is a word for a shell.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,@%+=", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
