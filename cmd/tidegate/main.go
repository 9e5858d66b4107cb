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
	"os/signal"
	"syscall"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/tree"
)

func main() { os.Exit(process()) }

// process runs the program with the arguments, streams and signals of this process.
func process() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	// A write to a closed pipe then fails, and the command ends in order. Programs of --exec have
	// the signal as usual, which they would not after signal.Ignore.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return run(ctx, os.Args[1:], call.New(os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program. It ends when its command does, or in order when ctx ends.
func run(ctx context.Context, args []string, a *call.App) int {
	return command.Execute(ctx, tree.Root(a), args, a.Out, a.Err)
}
