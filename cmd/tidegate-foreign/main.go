// Command tidegate-foreign is the command line of tidegate for foreign systems: Apache ActiveMQ
// Artemis over AMQP 1.0, and Apache Pulsar. It has the commands of tidegate, except those of the
// broker, and uses the same contexts: those of tidegate and RocketMQ work too. It is a module of
// its own, so that tidegate does not depend on the clients of these systems.
//
//	tidegate-foreign context add artemis --amqp amqp://127.0.0.1:5672
//	tidegate-foreign context add pulsar --pulsar pulsar://127.0.0.1:6650
//	tidegate-foreign doctor --topic orders --group billing
//	tidegate-foreign send orders 'order 42'
//	tidegate-foreign receive billing orders --then ack
//
// Commands that need the HTTP API of a tidegate broker end with 2 on a foreign system, and name the
// system's own way.
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

// root returns the tree of all commands. Foreign of the app may be set already.
func root(a *cli.App) *cobra.Command {
	if a.Foreign == nil {
		a.Foreign = map[string]*cli.Foreign{"amqp": artemis(), "pulsar": apachePulsar()}
	}
	c := &cobra.Command{
		Use:   "tidegate-foreign",
		Short: "The command line of tidegate for Artemis and Pulsar, and for tidegate and RocketMQ",
		Long: `tidegate-foreign is the command line of tidegate for Apache ActiveMQ Artemis over
AMQP 1.0 and for Apache Pulsar. Its commands are those of tidegate, and it uses the
same contexts.

Name a server, test it, send a message, receive it:

  tidegate-foreign context add artemis --amqp amqp://127.0.0.1:5672
  tidegate-foreign context add pulsar --pulsar pulsar://127.0.0.1:6650
  tidegate-foreign doctor --topic orders --group billing
  tidegate-foreign send orders 'order 42'
  tidegate-foreign receive billing orders --then ack

Both systems discard the messages of a topic that no group needs: the first receive
or doctor of a group creates what the group needs.

On Artemis a topic is a multicast address, a group the queue TOPIC.GROUP of it.
Retries are copies with a delay, and a message whose handling failed 10 times becomes
a dead letter in the queue GROUP.DLQ. A client certificate without --access-key
authenticates by SASL EXTERNAL.

On Pulsar a topic is a persistent topic of the context's --namespace, a group a shared
subscription. Retries go to the topic TOPIC-GROUP-RETRY, and a message whose handling
failed 17 times becomes a dead letter in TOPIC-GROUP-DLQ; --naming of the context has
the other names of TDMQ. --secret-file without --access-key has a token, and with it
a password.`,
	}
	c.AddGroup(cli.Groups()...)
	c.AddCommand(cli.Commands(a)...)
	cli.Finish(c, a)
	return c
}
