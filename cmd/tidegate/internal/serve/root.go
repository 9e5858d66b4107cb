package serve

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
)

// Root returns the tree of all commands.
func Root(a *cli.App) *cobra.Command {
	c := treeBroker(a)
	c.AddCommand(cli.Commands(a)...)
	cli.Finish(c, a)
	return c
}

// For returns the part of the tree that args need. A start of the broker does not need the flags of
// the client commands: building them takes a tenth of its CPU.
func For(a *cli.App, args []string) *cobra.Command {
	c := treeBroker(a)
	if len(args) == 0 || !slices.ContainsFunc(c.Commands(), func(c *cobra.Command) bool { return c.Name() == args[0] }) {
		return Root(a)
	}
	cli.Finish(c, a)
	return c
}

// treeBroker returns the root with the commands that run a treeBroker.
func treeBroker(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "tidegate",
		Short: "A message broker for RocketMQ 5 clients, and a command line for it and for RocketMQ",
		Long: `tidegate is a message broker that speaks the gRPC protocol of Apache RocketMQ 5, and
a command line for it and for RocketMQ clusters.

Start a broker, send a message, receive it:

  tidegate serve --topic orders
  tidegate send orders 'order 42'
  tidegate receive billing orders`,
	}
	c.AddGroup(&cobra.Group{ID: "server", Title: "The broker:"})
	c.AddGroup(cli.Groups()...)
	for _, s := range Commands(a.Out, a.Err) {
		s.GroupID = "server"
		c.AddCommand(s)
	}
	return c
}
