// Command tidegate-amqp is the command line of tidegate for Apache ActiveMQ Artemis over AMQP 1.0.
// It has the commands of tidegate, except those of the broker, and uses the same contexts: those of
// tidegate and RocketMQ work too. It is a module of its own, so that tidegate does not depend on an
// AMQP client.
//
//	tidegate-amqp context add artemis --amqp amqp://127.0.0.1:5672
//	tidegate-amqp doctor --topic orders --group billing
//	tidegate-amqp send orders 'order 42'
//	tidegate-amqp receive billing orders --then ack
//
// Commands that need the HTTP API of a tidegate broker end with 2 on an Artemis, and name Artemis's
// own way.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
)

func main() { os.Exit(cli.Process(run)) }

// run is the whole program. It ends when its command does, or in order when ctx ends.
func run(ctx context.Context, args []string, a *cli.App) int {
	defer a.Guard(ctx)()
	return cli.Execute(ctx, root(a), args, a.Out, a.Err)
}

// root returns the tree of all commands.
func root(a *cli.App) *cobra.Command {
	a.Artemis = &cli.Artemis{Open: open, Examine: examine, Instead: instead}
	c := &cobra.Command{
		Use:   "tidegate-amqp",
		Short: "The command line of tidegate for Apache ActiveMQ Artemis, and for tidegate and RocketMQ",
		Long: `tidegate-amqp is the command line of tidegate for Apache ActiveMQ Artemis over AMQP
1.0. Its commands are those of tidegate, and it uses the same contexts.

Name a server, test it, send a message, receive it:

  tidegate-amqp context add artemis --amqp amqp://127.0.0.1:5672
  tidegate-amqp doctor --topic orders --group billing
  tidegate-amqp send orders 'order 42'
  tidegate-amqp receive billing orders --then ack

A topic is a multicast address, a group the queue TOPIC.GROUP of it. The first
receive or doctor of a group creates its queue; Artemis discards the messages that
were sent before. Retries are copies with a delay, and a message whose handling
failed 10 times becomes a dead letter in the queue GROUP.DLQ. A client
certificate without --access-key authenticates by SASL EXTERNAL.`,
	}
	c.AddGroup(cli.Groups()...)
	c.AddCommand(cli.Commands(a)...)
	cli.Finish(c, a)
	return c
}
