package client

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/command"
)

// A jobEntry is the first line of a journal: the command with the flags that define the job.
type jobEntry struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // "job"
	Why   string    `json:"why"`   // the command
}

// job is the command with its arguments and the flags that select and change messages. The other
// flags may differ when a job is continued.
func (c *call) job() string {
	free := []string{"journal", "yes", "dry-run", "rate", "max", "max-failures", "workers", "wait", "lease", "follow", "dead-letters", "as"}
	parts := []string{c.command.CommandPath()}
	for _, arg := range c.args {
		parts = append(parts, quoted(arg))
	}
	c.command.Flags().Visit(func(f *pflag.Flag) {
		if len(f.Annotations[section]) > 0 || slices.Contains(free, f.Name) {
			return // the connection and the output
		}
		parts = append(parts, "--"+f.Name+"="+quoted(f.Value.String()))
	})
	return strings.Join(parts, " ")
}

// sameJob writes the job into a new journal, and refuses the journal of another job.
func (c *call) sameJob(path string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("the journal cannot be opened: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	first, err := bufio.NewReader(f).ReadBytes('\n')
	switch {
	case err == nil:
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("the journal cannot be read: %w", err)
	case len(first) > 0 && first[0] != '{':
		return command.Usagef(c.command, "%s is not a journal; give the path of a journal, or of a file that does not exist", path)
	default: // empty, or begun by a run without room for this line
		if err := f.Truncate(0); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		line, err := json.Marshal(jobEntry{time.Now().UTC(), "job", c.job()})
		if err != nil {
			return err
		}
		if _, err := f.WriteAt(append(line, '\n'), 0); err != nil {
			return fmt.Errorf("the journal %s cannot be written, and nothing was done: %w", path, err)
		}
		return nil
	}
	var e jobEntry
	if json.Unmarshal(first, &e) == nil && e.Event == "job" && e.Why != c.job() {
		return command.Usagef(c.command, "the journal %s belongs to another job: %s; continue that one, or give the path of a new journal", path, e.Why)
	}
	return nil
}
