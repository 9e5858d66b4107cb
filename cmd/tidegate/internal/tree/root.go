// Package tree has the tree of all commands of tidegate.
package tree

import (
	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/client"
	"github.com/tidegate/tidegate/cmd/internal/program"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
)

// Root returns the tree of all commands.
func Root(a *call.App) *cobra.Command {
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
	c.AddGroup(call.Groups()...)
	for _, s := range serve.Commands(a.Out, a.Err) {
		s.GroupID = "server"
		c.AddCommand(s)
	}
	c.AddCommand(client.Commands(a)...)
	program.Finish(c, a)
	return c
}
