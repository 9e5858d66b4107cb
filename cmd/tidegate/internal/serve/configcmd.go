package serve

import (
	_ "embed"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
)

// example is a file for serve --config with all settings and their defaults.
//
//go:embed tidegate.example.yaml
var example string

// configCommand is "tidegate config".
func configCommand(stdout io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or print an example",
		Args:  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.UsageError{Err: fmt.Errorf("config has no command %q; the commands are check and example", args[0]), Command: c.CommandPath()}
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
				return cli.UsageError{Err: errors.New("config check takes one argument, the file"), Command: c.CommandPath()}
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
	c.AddCommand(&cobra.Command{
		Use:   "example",
		Short: "Print a file for serve --config with all settings and their defaults",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 0 {
				return cli.UsageError{Err: errors.New("config example takes no arguments"), Command: c.CommandPath()}
			}
			return nil
		},
		Example: `  tidegate config example > tidegate.yaml`,
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(stdout, example)
			return err
		},
	})
	return c
}
