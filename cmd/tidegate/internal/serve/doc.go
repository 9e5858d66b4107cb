// Package serve has the commands serve and config: it reads the configuration of a broker, runs
// the broker and reloads its settings.
package serve

import (
	"io"

	"github.com/spf13/cobra"
)

// Commands returns the commands of this package. Results go to stdout and logs to stderr.
func Commands(stdout, stderr io.Writer) []*cobra.Command {
	return []*cobra.Command{serveCommand(stdout, stderr), configCommand(stdout)}
}
