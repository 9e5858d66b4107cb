// Package call has the frame of the commands that use a server: their flags, their connection and
// their output.
package call

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/doctor"
	"github.com/tidegate/tidegate/cmd/internal/terminal"
)

// An App is the surroundings of the commands.
type App struct {
	In       io.Reader
	Out      io.Writer // results
	Err      io.Writer // notes, progress and errors
	Env      func(string) string
	Terminal bool // results go to a terminal, and a question can be asked on In
	Columns  int  // of the terminal of the results; 0 means none, or unknown
	Watched  bool // notes go to a terminal
	Artemis  *Artemis
}

// An Artemis is the support of a program for Apache ActiveMQ Artemis over AMQP. A program without
// it names the one that has it.
type Artemis struct {
	// Open connects to a server.
	Open connection.Opener

	// Examine tests the set-up as a client, for the command doctor.
	Examine func(context.Context, *doctor.Patient)

	// Instead has Artemis's own command for each command that needs the HTTP API of tidegate, by
	// the words of that command.
	Instead map[string]string
}

// opener returns nil if the program does not speak AMQP.
func (a *App) opener() connection.Opener {
	if a.Artemis == nil {
		return nil
	}
	return a.Artemis.Open
}

// New returns an App of this process.
func New(stdin io.Reader, stdout, stderr io.Writer) *App {
	return &App{In: stdin, Out: stdout, Err: stderr, Env: os.Getenv, Terminal: terminal.Is(stdin) && terminal.Is(stdout), Columns: terminal.Columns(stdout), Watched: terminal.Is(stderr)}
}

// Shown reports whether results go to a terminal. The input can be another one.
func (a *App) Shown() bool { return a.Terminal || a.Columns > 0 }

// Guard makes the streams of the app those of a command: its outputs cannot control a terminal, and
// its reads of the input end with ctx. The function that it returns completes the outputs.
func (a *App) Guard(ctx context.Context) (end func()) {
	out, notes := terminal.NewWriter(a.Out), terminal.NewWriter(a.Err)
	a.In, a.Out, a.Err = terminal.NewReader(ctx, a.In), out, notes
	return func() { _, _ = out.End(), notes.End() } // the errors before them are returned
}

// The groups of the help.
const (
	SeeGroup     = "see"
	MessageGroup = "messages"
	FailureGroup = "failures"
	OperateGroup = "operate"
	ToolGroup    = "tools"
)

// Groups are the groups of the commands in the help.
func Groups() []*cobra.Group {
	return []*cobra.Group{
		{ID: MessageGroup, Title: "Messages:"},
		{ID: SeeGroup, Title: "Topics, groups and their state:"},
		{ID: FailureGroup, Title: "Failures:"},
		{ID: OperateGroup, Title: "Operation:"},
		{ID: ToolGroup, Title: "Tools:"},
	}
}

// Parent is a command that only has others below it.
func Parent(group, use, short, example string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, GroupID: group, Short: short, Example: example, Args: noArguments, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(children...)
	return c
}
