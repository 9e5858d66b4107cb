package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/nearest"
)

// An App is the surroundings of the commands.
type App struct {
	In       io.Reader
	Out      io.Writer // results
	Err      io.Writer // notes, progress and errors
	Env      func(string) string
	Terminal bool                // results go to a terminal, and a question can be asked on In
	Columns  int                 // of the terminal of the results; 0 means none, or unknown
	Watched  bool                // notes go to a terminal
	Foreign  map[string]*Foreign // the foreign servers that the program reaches, by their kind
}

// New returns an App of this process.
func New(stdin io.Reader, stdout, stderr io.Writer) *App {
	return &App{In: stdin, Out: stdout, Err: stderr, Env: os.Getenv, Terminal: is(stdin) && is(stdout), Columns: columns(stdout), Watched: is(stderr)}
}

// Shown reports whether results go to a terminal. The input can be another one.
func (a *App) Shown() bool { return a.Terminal || a.Columns > 0 }

// Guard makes the streams of the app those of a command: its outputs cannot control a terminal, and
// its reads of the input end with ctx. The function that it returns completes the outputs.
func (a *App) Guard(ctx context.Context) (end func()) {
	out, notes := newWriter(a.Out), newWriter(a.Err)
	a.In, a.Out, a.Err = newReader(ctx, a.In), out, notes
	return func() { _, _ = out.End(), notes.End() } // the errors before them are returned
}

// The groups of the help.
const (
	seeGroup     = "see"
	messageGroup = "messages"
	failureGroup = "failures"
	operateGroup = "operate"
	toolGroup    = "tools"
)

// Groups are the groups of the commands in the help.
func Groups() []*cobra.Group {
	return []*cobra.Group{
		{ID: messageGroup, Title: "Messages:"},
		{ID: seeGroup, Title: "Topics, groups and their state:"},
		{ID: failureGroup, Title: "Failures:"},
		{ID: operateGroup, Title: "Operation:"},
		{ID: toolGroup, Title: "Tools:"},
	}
}

// parent is a command that only has others below it.
func parent(group, use, short, example string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, GroupID: group, Short: short, Example: example, Args: noArguments, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(children...)
	return c
}

// A Call is one execution of a command, with its flags.
type Call struct {
	*App
	Command *cobra.Command
	Args    []string

	Connection flags
	Format     output.Choice[output.Format]
	columns    []string
	noHeaders  bool
	Sort       string
	Limit      int
	Times      output.Choice[output.TimeStyle]
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
func (a *App) Leaf(cmd *cobra.Command, args []string, work run) *cobra.Command {
	return a.Remote(cmd, args, work).Command
}

// connectionSection is the heading of the flags that name the server.
const connectionSection = "Connection"

// Remote is leaf for a command with further flags in the call.
func (a *App) Remote(cmd *cobra.Command, args []string, work run) *Call {
	c := a.Local(cmd, args, func(ctx context.Context, c *Call) error { return c.hinted(work(ctx, c)) })
	f := cmd.Flags()
	c.Connection.Register(f, a.Foreign)
	f.DurationVar(&c.Timeout, "timeout", 10*time.Second, "maximal time for one response of the server")
	f.BoolVar(&c.noRetry, "no-retry", false, "do not repeat failed requests")
	sectioned(f, connectionSection, "context", "http", "grpc", amqp, pulsar, "access-key", "secret-file", "tls", "cacert", "cert", "cert-key", "tls-skip-verify", "timeout", "no-retry")
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
func (a *App) Local(cmd *cobra.Command, args []string, work run) *Call {
	c := &Call{App: a, Command: cmd, Format: output.Choice[output.Format]{Chosen: output.Table, Kind: "format", Of: output.Formats}}
	c.Times = output.Choice[output.TimeStyle]{Chosen: output.Relative, Kind: "form", Of: []output.TimeStyle{output.Relative, output.Local, output.UTC}}
	if !a.Shown() {
		c.Times.Chosen = output.UTC
	}
	if len(args) > 0 {
		cmd.Use += " " + strings.Join(args, " ")
	}
	cmd.Args = exactly(args)
	cmd.SetUsageFunc(usage)
	f := cmd.Flags()
	f.VarP(&c.Format, "output", "o", "`format`: table, wide, json, jsonl or name")
	f.StringSliceVar(&c.columns, "columns", nil, "`names` of the columns of a table")
	f.BoolVar(&c.noHeaders, "no-headers", false, "print no header")
	f.StringVar(&c.Sort, "sort", "", "`column` to sort by, descending with a leading -")
	f.IntVar(&c.Limit, "limit", 0, "most rows of a list; 0 means all")
	f.Var(&c.Times, "time", "`form` of times in tables: relative, local or utc")
	sectioned(f, "Output", "output", "columns", "no-headers", "sort", "limit", "time")
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

// sectioned puts flags below a heading of the help.
func sectioned(f *pflag.FlagSet, heading string, names ...string) {
	for _, name := range names {
		_ = f.SetAnnotation(name, section, []string{heading}) // the flag exists
	}
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
		return usagef(cmd, "unknown command %q for %q; did you mean '%s %s'?", args[0], cmd.CommandPath(), cmd.CommandPath(), near)
	}
	return usagef(cmd, "unknown command %q for %q; the commands are %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
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
			return usagef(cmd, "%s is missing", names[len(args)])
		case most >= 0 && len(args) > most:
			return usagef(cmd, "the argument %q is too many; the command takes %s", args[most], cmp.Or(strings.Join(names, " "), "no argument"))
		}
		for i, arg := range args {
			if arg == "" && i < least {
				return usagef(cmd, "%s is empty", names[i])
			}
		}
		return nil
	}
}

// A run is the work of a command.
type run func(ctx context.Context, c *Call) error

// An unknownError is the error of a name that does not exist, with a hint.
type unknownError struct {
	error
	hint string
}

func (e *unknownError) Unwrap() error { return e.error }

// Hint is the line below the error.
func (e *unknownError) Hint() string { return e.hint }

func unknown(err error, name string, known []string, list string) error {
	if slices.Contains(known, name) {
		return err // it is about something else
	}
	if near := nearest.Name(name, known); near != "" {
		return &unknownError{err, fmt.Sprintf("Did you mean %s? '%s' has all.", output.Safe(near), list)}
	}
	return &unknownError{err, fmt.Sprintf("'%s' has all.", list)}
}

// hinted adds RocketMQ's own commands to the error of a topic that does not exist on a RocketMQ.
func (c *Call) hinted(err error) error {
	if !errors.Is(err, tidegate.ErrTopicNotFound) {
		return err
	}
	if _, has := errors.AsType[hinted](err); has {
		return err
	}
	if s, serr := resolve(c.Connection, c.Env, io.Discard, c.Foreign); serr != nil || s.Kind != connectionRocketMQ {
		return err
	}
	return &unknownError{err, "'mqadmin topicList -n NAMESERVER' has all topics; 'mqadmin updateTopic -n NAMESERVER -c CLUSTER -t NAME' creates one."}
}

// Diff prints the settings that differ, the old and the new value.
func (c *Call) Diff(name string, before, after any) error {
	changes := viewChanges(before, after)
	if changes == "" {
		c.Note("%s: nothing changes", output.Safe(name))
	}
	_, err := fmt.Fprint(c.Out, changes)
	return err
}

// UnknownGroup adds the most similar groups to the error of a group that does not exist.
func (c *Call) UnknownGroup(ctx context.Context, client *admin.Client, err error) error {
	if !errors.Is(err, tidegate.ErrNotFound) {
		return err
	}
	return c.unknown(ctx, client, err, "GROUP", c.Args[0], "tidegate group list")
}

// UnknownTopic adds the most similar topics to the error of a topic that does not exist.
func (c *Call) UnknownTopic(ctx context.Context, client *admin.Client, err error) error {
	if !errors.Is(err, tidegate.ErrTopicNotFound) {
		return err
	}
	return c.unknown(ctx, client, err, "TOPIC", c.Args[len(c.Args)-1], "tidegate topic list")
}

func (c *Call) unknown(ctx context.Context, client *admin.Client, err error, kind, name, list string) error {
	names, lerr := namesOf(ctx, client, kind)
	if lerr != nil {
		return err
	}
	return unknown(err, name, names, c.Here(list))
}

// mapped returns a value for each element of a list.
func mapped[T, V any](list []T, of func(T) V) (all []V) {
	for _, v := range list {
		all = append(all, of(v))
	}
	return all
}

// notNil returns a list that is [] in JSON if it is empty.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// matchFlag adds --match.
func matchFlag(c *cobra.Command, at *string) {
	c.Flags().StringVar(at, "match", "", "`pattern` of names, with * for any text")
}

// matchNote is the part of a text about an empty list that names the pattern of --match.
func matchNote(pattern string) string {
	if pattern == "" {
		return ""
	}
	return " with a name like " + output.Safe(pattern)
}

// A notFoundError is the error of a subject that does not exist.
type notFoundError struct{ text string }

func (e *notFoundError) Error() string { return e.text }

// Is makes the error one of a missing subject, for the exit code.
func (e *notFoundError) Is(target error) bool { return target == tidegate.ErrNotFound }

// notFound is an error with the exit code of a subject that does not exist.
func notFound(text string) error { return &notFoundError{text} }

// lastLine returns the last line of a text that has characters.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// Process runs a program with the arguments, streams and signals of this process, and returns its
// exit code.
func Process(run func(ctx context.Context, args []string, a *App) int) int {
	ctx, end := context.WithCancelCause(context.Background()) // the first of the process
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		end(Signal{Signal: <-signals})
		endBy(<-signals) // a second one ends the program at once, with the programs that it runs
	}()
	// A write to a closed pipe then fails, and the command ends in order. Programs of --exec have
	// the signal as usual, which they would not after signal.Ignore.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return run(ctx, os.Args[1:], New(os.Stdin, os.Stdout, os.Stderr))
}

// Here returns a command that this one offers, for the same server: with the flags of the
// connection that the user gave.
func (c *Call) Here(line string) string { return here(c.Command, line) }

func here(c *cobra.Command, line string) string {
	var flags strings.Builder
	c.Flags().Visit(func(f *pflag.Flag) {
		if slices.Equal(f.Annotations[section], []string{connectionSection}) && f.Name != "timeout" && f.Name != "no-retry" {
			flags.WriteString(" --" + f.Name + "=" + output.Quote(f.Value.String()))
		}
	})
	words := strings.Fields(line)
	if flags.Len() == 0 || len(words) == 0 {
		return line
	}
	path := words[0]
	if found, _, err := c.Root().Find(words[1:]); err == nil && strings.HasPrefix(line+" ", found.CommandPath()+" ") {
		path = found.CommandPath()
	}
	return path + flags.String() + line[len(path):]
}

// Again returns the command with its arguments and flags, for a shell. Further values replace those
// of the flags.
func (c *Call) Again(further map[string]string) string {
	var flags strings.Builder
	add := func(name, value string) { flags.WriteString(" --" + name + "=" + output.Quote(value)) }
	c.Command.Flags().Visit(func(f *pflag.Flag) {
		if _, replaced := further[f.Name]; replaced {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				add(f.Name, v)
			}
			return
		}
		add(f.Name, f.Value.String())
	})
	for _, name := range slices.Sorted(maps.Keys(further)) {
		add(name, further[name])
	}
	return output.CommandFlags(c.Command.CommandPath(), flags.String(), c.Args...)
}

// Commands returns the commands.
func Commands(a *App) []*cobra.Command {
	return []*cobra.Command{
		newSend(a), newReceive(a), newPeek(a), newFind(a), newTrace(a), newRecall(a),
		newStatus(a), newTop(a), newClients(a), newMetrics(a), newCheck(a), newConsole(a),
		newTopics(a), newGroups(a), newRetries(a), newLimits(a), newAddress(a), newApply(a), newExport(a), newAudit(a), newAPI(a),
		newDeadLetters(a), newParked(a), newContexts(a), newDoctor(a), newMove(a), newBench(a),
	}
}
