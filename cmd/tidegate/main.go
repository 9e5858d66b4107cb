// Command tidegate is the broker and its command line. It sends and receives messages, shows and
// changes topics and consumer groups, and repairs dead letters, on a tidegate broker and on Apache
// RocketMQ 5.
//
// Results go to stdout; logs, notes and errors go to stderr. "tidegate help exit-codes" lists the
// exit codes.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/tidegate/internal/command"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
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
		Version: version(),
	}
	root.AddCommand(serve.Commands(stdout, stderr)...)
	root.CompletionOptions.HiddenDefaultCmd = true
	return command.Execute(ctx, root, args, stdout, stderr)
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
