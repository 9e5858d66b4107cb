package call

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/job"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// job is the command with its arguments and the flags that select and change messages. The other
// flags may differ when a job is continued.
func (c *Call) job() string {
	free := []string{"journal", "yes", "dry-run", "rate", "max", "max-failures", "workers", "wait", "lease", "follow", "dead-letters", "as"}
	parts := []string{c.Command.CommandPath()}
	for _, arg := range c.Args {
		parts = append(parts, shell.Quote(arg))
	}
	c.Command.Flags().Visit(func(f *pflag.Flag) {
		if len(f.Annotations[command.Section]) > 0 || slices.Contains(free, f.Name) {
			return // the connection and the output
		}
		parts = append(parts, "--"+f.Name+"="+shell.Quote(f.Value.String()))
	})
	return strings.Join(parts, " ")
}

// SameJob writes the job into a new journal, and rejects the journal of another job.
func (c *Call) SameJob(path string) error {
	err := job.Begin(path, c.job())
	if other, ok := errors.AsType[*job.OtherError](err); ok {
		return c.Usage(other)
	}
	return err
}

// Journal returns the path of a new journal.
func (c *Call) Journal(job string) (string, error) {
	dir := c.Env("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("the journal has no directory: %w; give --journal FILE", err)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	dir = filepath.Join(dir, "tidegate")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the directory of the journal cannot be created: %w; give --journal FILE", err)
	}
	return filepath.Join(dir, fmt.Sprintf("%s-%s.jsonl", inFileName.ReplaceAllString(job, "_"), time.Now().UTC().Format("20060102T150405.000"))), nil
}

var inFileName = regexp.MustCompile(`[^A-Za-z0-9._-]`)
