package serve

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
)

// run is the program with the commands of this package alone.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "tidegate"}
	root.AddCommand(Commands(stdout, stderr)...)
	return cli.Execute(ctx, root, args, stdout, stderr)
}
