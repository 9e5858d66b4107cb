package call

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/nearest"
)

// A Call is one execution of a command, with its flags.
type Call struct {
	*App
	Command *cobra.Command
	Args    []string

	Connection connection.Flags
	Format     output.FormatFlag
	columns    []string
	noHeaders  bool
	Sort       string
	Limit      int
	Times      output.TimeFlag
	Timeout    time.Duration
	noRetry    bool
	Machine    bool // a program reads the output, also if it is no JSON
	Screen     bool // the output is drawn on the whole screen
	Yes        string
	DryRun     bool

	Admins  *admin.Client          // opened by admin
	address atomic.Pointer[string] // of the server in use
	listed  bool                   // the flags for columns and rows had an effect
	noted   sync.Once              // prints the note that the server is not connected
}

// Leaf completes a command that uses a server: with its arguments, the flags of the output and of
// the connection. Args are names such as TOPIC; one in brackets is optional, and one with "..." at
// its end may come several times.
func (a *App) Leaf(cmd *cobra.Command, args []string, work Run) *cobra.Command {
	return a.Remote(cmd, args, work).Command
}

// connectionSection is the heading of the flags that name the server.
const connectionSection = "Connection"

// Remote is leaf for a command with further flags in the call.
func (a *App) Remote(cmd *cobra.Command, args []string, work Run) *Call {
	c := a.Local(cmd, args, func(ctx context.Context, c *Call) error { return c.hinted(work(ctx, c)) })
	f := cmd.Flags()
	c.Connection.Register(f, a.Artemis != nil)
	f.DurationVar(&c.Timeout, "timeout", 10*time.Second, "maximal time for one response of the server")
	f.BoolVar(&c.noRetry, "no-retry", false, "do not repeat failed requests")
	for _, name := range []string{"context", "http", "grpc", "amqp", "access-key", "secret-file", "tls", "cacert", "cert", "cert-key", "tls-skip-verify", "timeout", "no-retry"} {
		_ = f.SetAnnotation(name, command.Section, []string{connectionSection}) // the flag exists
	}
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { // the flag exists
		f, _, err := c.ContextFile()
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

// Local completes a command without a server.
func (a *App) Local(cmd *cobra.Command, args []string, work Run) *Call {
	c := &Call{App: a, Command: cmd, Format: output.FormatFlag{Format: output.Table}, Times: output.TimeFlag{TimeStyle: output.Relative}}
	if !a.Shown() {
		c.Times.TimeStyle = output.UTC
	}
	if len(args) > 0 {
		cmd.Use += " " + strings.Join(args, " ")
	}
	cmd.Args = exactly(args)
	cmd.SetUsageFunc(command.Usage)
	f := cmd.Flags()
	f.VarP(&c.Format, "output", "o", "`format`: table, wide, json, jsonl or name")
	f.StringSliceVar(&c.columns, "columns", nil, "`names` of the columns of a table")
	f.BoolVar(&c.noHeaders, "no-headers", false, "print no header")
	f.StringVar(&c.Sort, "sort", "", "`column` to sort by, descending with a leading -")
	f.IntVar(&c.Limit, "limit", 0, "most rows of a list; 0 means all")
	f.Var(&c.Times, "time", "`form` of times in tables: relative, local or utc")
	for _, name := range []string{"output", "columns", "no-headers", "sort", "limit", "time"} {
		_ = f.SetAnnotation(name, command.Section, []string{"Output"})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		c.Args = args
		defer func() {
			if c.Admins != nil {
				err = errors.Join(err, c.Admins.Close())
			}
		}()
		if err = work(cmd.Context(), c); err == nil {
			c.noteUnused()
		}
		return err
	}
	return c
}

// NoLimit rejects --limit, which bounds the rows of a list, for a command whose user may take this
// flag for a bound of the work. instead is a hint at the right flag.
func (c *Call) NoLimit(instead string) {
	f := c.Command.Flags().Lookup("limit")
	f.Hidden, f.Value = true, noLimit(instead)
}

// noLimit is the value of a flag that is not permitted.
type noLimit string

func (noLimit) Type() string       { return "int" }
func (noLimit) String() string     { return "0" }
func (n noLimit) Set(string) error { return errors.New("it bounds the rows of a list; " + string(n)) }

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
			return command.Usagef(cmd, "the argument %q is too many; the command takes %s", args[most], cmp.Or(strings.Join(names, " "), "no argument"))
		}
		for i, arg := range args {
			if arg == "" && i < least {
				return command.Usagef(cmd, "%s is empty", names[i])
			}
		}
		return nil
	}
}

// Subject completes a command of another package that uses no server and prints one subject: the
// document for JSON, and names with values.
func (a *App) Subject(cmd *cobra.Command, subject func() (document any, fields [][2]string)) *cobra.Command {
	return a.Local(cmd, nil, func(_ context.Context, c *Call) error {
		document, pairs := subject()
		fields := make([]output.Field, len(pairs))
		for i, p := range pairs {
			fields[i] = output.Field{Name: p[0], Value: p[1]}
		}
		return c.Show(document, pairs[0][1], fields)
	}).Command
}

// A Run is the work of a command.
type Run func(ctx context.Context, c *Call) error
