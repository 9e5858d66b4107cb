package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/filelock"
)

// job is the command with its arguments and the flags that select and change messages. The other
// flags may differ when a job is continued.
func (c *Call) job() string {
	free := []string{"journal", "yes", "dry-run", "rate", "max", "max-failures", "workers", "wait", "lease", "follow", "dead-letters", "as"}
	parts := []string{c.Command.CommandPath()}
	for _, arg := range c.Args {
		parts = append(parts, output.Quote(arg))
	}
	c.Command.Flags().Visit(func(f *pflag.Flag) {
		if len(f.Annotations[section]) > 0 || slices.Contains(free, f.Name) {
			return // the connection and the output
		}
		parts = append(parts, "--"+f.Name+"="+output.Quote(f.Value.String()))
	})
	return strings.Join(parts, " ")
}

// SameJob writes the job into a new journal, and rejects the journal of another job.
func (c *Call) SameJob(path string) error {
	err := begin(path, c.job())
	if other, ok := errors.AsType[*otherError](err); ok {
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

// An otherError is the error of a file that is not the journal of a job.
type otherError struct{ text string }

func (e *otherError) Error() string { return e.text }

// An entry is the first line of a journal: the command with the flags that define the job.
type entry struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // "job"
	Why   string    `json:"why"`   // the command
}

// begin writes a job into a new journal, and rejects the journal of another job with an
// OtherError.
func begin(path, job string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("the journal cannot be opened: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	unlock, err := filelock.Lock(f)
	if err != nil {
		return fmt.Errorf("nothing was done: the journal %w", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	first, err := bufio.NewReader(f).ReadBytes('\n')
	if marked := declare.Marked(first); marked != nil && (err == nil || errors.Is(err, io.EOF)) {
		return &otherError{fmt.Sprintf("the journal %s cannot be read: %v", path, marked)}
	}
	switch {
	case err == nil:
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("the journal cannot be read: %w", err)
	case !filelock.Torn(1, first, `{"time":`, `{"event":`):
		return &otherError{fmt.Sprintf("%s is not a journal; give the path of a journal, or of a file that does not exist", path)}
	default: // empty, or begun by a run without room for this line
		if err := f.Truncate(0); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		line, err := json.Marshal(entry{time.Now().UTC(), "job", job})
		if err != nil {
			return err
		}
		_, err = f.WriteAt(append(line, '\n'), 0)
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return fmt.Errorf("the journal %s cannot be written, and nothing was done: %w; make space on its disk, or give another path (--journal)", path, err)
		}
		return nil
	}
	var e entry
	if json.Unmarshal(first, &e) == nil && e.Event == "job" && e.Why != job {
		return &otherError{fmt.Sprintf("the journal %s belongs to another job: %s; continue that one, or give the path of a new journal", path, e.Why)}
	}
	return nil
}
