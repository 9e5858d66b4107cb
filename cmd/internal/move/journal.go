package move

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// The events of a journal. Its first line is the job of the command.
const (
	sentEvent  = "sent"  // the target has the messages
	ackedEvent = "acked" // the source has removed them
)

// An entry is one line of a journal.
type entry struct {
	Event string   `json:"event"`
	IDs   []string `json:"ids,omitempty"`
}

// A Journal records the messages that the target has and the source still can deliver. Several
// goroutines may use it.
type Journal struct {
	mu     sync.Mutex
	file   *os.File
	sent   map[string]bool // and not acknowledged
	failed error           // of a write, which may have written a part of a line
}

// OpenJournal reads a journal. It removes a last line that a crash has cut off.
func OpenJournal(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	j := &Journal{file: f, sent: map[string]bool{}}
	if err := j.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("journal %s: %w", path, err), f.Close())
	}
	return j, nil
}

func (j *Journal) read() error {
	r, whole := bufio.NewReader(j.file), int64(0)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		whole += int64(len(line))
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("line %d is not an entry: %w", n, err)
		}
		for _, id := range e.IDs {
			if e.Event == sentEvent {
				j.sent[id] = true
			} else {
				delete(j.sent, id)
			}
		}
	}
	if err := j.file.Truncate(whole); err != nil {
		return err
	}
	_, err := j.file.Seek(whole, io.SeekStart)
	return err
}

// Sent reports whether the target has a message that the source has not removed.
func (j *Journal) Sent(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.sent[id]
}

// record appends an event and returns when it is on disk, if sync is set. After a failure it writes
// nothing: an incomplete line must stay the last one, which OpenJournal removes.
func (j *Journal) record(event string, ids []string, sync bool) error {
	if len(ids) == 0 {
		return nil
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(entry{event, ids}); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	for _, id := range ids {
		if event == sentEvent {
			j.sent[id] = true
		} else {
			delete(j.sent, id)
		}
	}
	_, err := j.file.Write(b.Bytes())
	if err == nil && sync {
		err = j.file.Sync()
	}
	if err != nil {
		j.failed = fmt.Errorf("the journal cannot be written; the messages in hand are delivered and sent again: %w", err)
	}
	return j.failed
}

// Close ends the journal.
func (j *Journal) Close() error { return j.file.Close() }
