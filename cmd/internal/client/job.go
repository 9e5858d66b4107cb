package client

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/job"
)

// job is the command with its arguments and the flags that select and change messages. The other
// flags may differ when a job is continued.
func (c *call) job() string {
	free := []string{"journal", "yes", "dry-run", "rate", "max", "max-failures", "workers", "wait", "lease", "follow", "dead-letters", "as"}
	parts := []string{c.command.CommandPath()}
	for _, arg := range c.args {
		parts = append(parts, quoted(arg))
	}
	c.command.Flags().Visit(func(f *pflag.Flag) {
		if len(f.Annotations[command.Section]) > 0 || slices.Contains(free, f.Name) {
			return // the connection and the output
		}
		parts = append(parts, "--"+f.Name+"="+quoted(f.Value.String()))
	})
	return strings.Join(parts, " ")
}

// sameJob writes the job into a new journal, and refuses the journal of another job.
func (c *call) sameJob(path string) error {
	err := job.Begin(path, c.job())
	if other, ok := errors.AsType[*job.OtherError](err); ok {
		return command.UsageError{Err: other, Command: c.command.CommandPath()}
	}
	return err
}
