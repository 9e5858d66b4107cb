// Command tidegate runs the reference broker: a server that RocketMQ 5
// clients can use, in memory or with a data directory.
//
// It exits with 0 when it was stopped in order, with 2 if its arguments or
// its configuration are wrong, and with 1 if anything else failed. Logs go to
// stderr, results to stdout.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program. It ends when its command does, or in order when ctx ends.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "tidegate",
		Short: "A message broker for RocketMQ 5 clients, for tests and small installations",
		Long: `tidegate is a message broker that speaks the gRPC protocol of Apache RocketMQ 5.
RocketMQ's official clients and the Go SDK github.com/tidegate/tidegate work with it.

It throttles producers when a backlog is too large, retries failed messages by a
schedule, and keeps dead letters.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{err, c.CommandPath()} })
	root.AddCommand(serveCommand(stdout, stderr), configCommand(stdout))
	root.CompletionOptions.HiddenDefaultCmd = true
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	bad, wrong := errors.AsType[faults](err)
	if wrong {
		fmt.Fprintf(stderr, "tidegate: the configuration is invalid\n%v\n", bad)
	} else {
		fmt.Fprintf(stderr, "tidegate: %v\n", err)
	}
	if u, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(stderr, "Run '%s --help' for its arguments and flags.\n", u.command)
		return 2
	}
	if wrong {
		return 2
	}
	if c, _, ferr := root.Find(args); ferr != nil || c == root {
		fmt.Fprintln(stderr, "Run 'tidegate --help' for the commands.")
		return 2
	}
	return 1
}

// A usageError is an argument that cannot be understood.
type usageError struct {
	error
	command string
}

func (e usageError) Unwrap() error { return e.error }

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
