package program

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// Process runs a program with the arguments, streams and signals of this process, and returns its
// exit code.
func Process(run func(ctx context.Context, args []string, a *call.App) int) int {
	ctx, end := context.WithCancelCause(context.Background()) // the first of the process
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		end(command.Signal{Signal: <-signals})
		shell.EndBy(<-signals) // a second one ends the program at once, with the programs that it runs
	}()
	// A write to a closed pipe then fails, and the command ends in order. Programs of --exec have
	// the signal as usual, which they would not after signal.Ignore.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return run(ctx, os.Args[1:], call.New(os.Stdin, os.Stdout, os.Stderr))
}
