// Package job marks a journal with the command that it belongs to.
package job

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tidegate/tidegate/cmd/internal/input"
	"github.com/tidegate/tidegate/internal/filelock"
)

// An OtherError is the error of a file that is not the journal of a job.
type OtherError struct{ text string }

func (e *OtherError) Error() string { return e.text }

// An entry is the first line of a journal: the command with the flags that define the job.
type entry struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // "job"
	Why   string    `json:"why"`   // the command
}

// Begin writes a job into a new journal, and rejects the journal of another job with an
// OtherError.
func Begin(path, job string) (err error) {
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
	if marked := input.Marked(first); marked != nil && (err == nil || errors.Is(err, io.EOF)) {
		return &OtherError{fmt.Sprintf("the journal %s cannot be read: %v", path, marked)}
	}
	switch {
	case err == nil:
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("the journal cannot be read: %w", err)
	case !filelock.Torn(1, first, `{"time":`, `{"event":`):
		return &OtherError{fmt.Sprintf("%s is not a journal; give the path of a journal, or of a file that does not exist", path)}
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
		return &OtherError{fmt.Sprintf("the journal %s belongs to another job: %s; continue that one, or give the path of a new journal", path, e.Why)}
	}
	return nil
}
