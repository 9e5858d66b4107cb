package program

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// Process runs a program with the arguments, streams and signals of this process, and returns its
// exit code.
func Process(run func(ctx context.Context, args []string, a *call.App) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // the first of the process
	defer stop()
	again := make(chan os.Signal, 1)
	context.AfterFunc(ctx, func() { // a second Ctrl-C ends the program at once, with the programs that it runs
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		stop()
		shell.EndBy(<-again)
	})
	// A write to a closed pipe then fails, and the command ends in order. Programs of --exec have
	// the signal as usual, which they would not after signal.Ignore.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return run(ctx, os.Args[1:], call.New(os.Stdin, os.Stdout, os.Stderr))
}
