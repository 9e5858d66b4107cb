// Command tidegate is the broker and its command line. It sends and receives messages, shows and
// changes topics and consumer groups, and repairs dead letters, on a tidegate broker and on Apache
// RocketMQ 5.
//
// Results go to stdout; logs, notes and errors go to stderr. "tidegate help exit-codes" lists the
// exit codes.
package main

import (
	"context"
	"os"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
)

func main() { os.Exit(process()) }

func process() int { return cli.Process(run) }

// run is the whole program. It ends when its command does, or in order when ctx ends.
func run(ctx context.Context, args []string, a *cli.App) int {
	defer a.Guard(ctx)()
	return cli.Execute(ctx, serve.For(a, args), args, a.Out, a.Err)
}
