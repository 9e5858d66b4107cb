// Package client has the commands that use a server: a tidegate broker or Apache RocketMQ 5. It
// does not import the broker.
package client

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/terminal"
)

// An App is the surroundings of the commands.
type App struct {
	In       io.Reader
	Out      io.Writer // results
	Err      io.Writer // notes, progress and errors
	Env      func(string) string
	Terminal bool // results go to a terminal, and a question can be asked on In
	Columns  int  // of the terminal; 0 means unknown
}

// New returns an App of this process.
func New(stdin io.Reader, stdout, stderr io.Writer) *App {
	return &App{In: stdin, Out: stdout, Err: stderr, Env: os.Getenv, Terminal: terminal.Is(stdin) && terminal.Is(stdout), Columns: terminal.Columns(stdout)}
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

// Commands returns all commands of this package.
func (a *App) Commands() []*cobra.Command {
	return []*cobra.Command{
		a.send(), a.receive(), a.peek(), a.find(), a.trace(), a.recall(),
		a.status(), a.console(), a.top(), a.metrics(), a.check(), a.topics(), a.groups(),
		a.deadLetters(), a.parked(), a.retries(),
		a.limits(), a.address(), a.apply(), a.export(), a.move(), a.api(),
		a.contexts(), a.doctor(), a.bench(),
	}
}

// parent is a command that only has others below it.
func parent(group, use, short, example string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, GroupID: group, Short: short, Example: example, Args: noArguments, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(children...)
	return c
}

// A run is the work of a command.
type run func(ctx context.Context, c *call) error
