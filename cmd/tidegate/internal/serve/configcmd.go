package serve

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/command"
)

// configCommand is "tidegate config".
func configCommand(stdout io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file",
		Args:  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return command.UsageError{Err: fmt.Errorf("config has no command %q; the command is check", args[0]), Command: c.CommandPath()}
			}
			return c.Help()
		},
	}
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Print all faults of a file for serve --config, or ok",
		Long: `Prints all faults of a file for 'tidegate serve --config', each with its line,
and exits with 2; or prints ok, and exits with 0. It reads only this file, not
the environment and not the files that it names, such as certificates and
secrets. It starts nothing.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return command.UsageError{Err: errors.New("config check takes one argument, the file"), Command: c.CommandPath()}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := load(args[0], nil, nil); err != nil {
				return err
			}
			fmt.Fprintln(stdout, "ok")
			return nil
		},
	})
	return c
}
