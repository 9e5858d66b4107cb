package deadletter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tidegate/tidegate/internal/filelock"
)

// The values of Event.Event.
const (
	eventBegin    = "begin"
	eventIntent   = "intent"
	eventRedriven = "redriven"
	eventFailed   = "failed"
	eventSkipped  = "skipped"
	eventEnd      = "end"
	eventJob      = "job" // the first line of a journal of the command line
)

// An Event is one line of a journal. Its Event is one of these:
//
//   - "begin": a run begins;
//   - "intent": the letter is about to be sent back;
//   - "redriven": the letter is stored in its topic;
//   - "failed": the letter stays, and a later run tries it again; Why has the reason;
//   - "skipped": the letter stays; Why has the reason;
//   - "end": the run has ended.
type Event struct {
	Time       time.Time `json:"time"`
	Event      string    `json:"event"`
	Group      string    `json:"group,omitempty"`      // of begin: the consumer group of the dead letters
	Actor      string    `json:"actor,omitempty"`      // of begin: Options.Actor
	MessageID  string    `json:"message_id,omitempty"` // of the dead letter
	Generation int       `json:"generation"`           // number of earlier redrives
	Origin     string    `json:"origin"`               // the topic of the original send; empty if it is unknown
	At         string    `json:"at,omitempty"`         // tells letters with one ID apart
	SentAs     string    `json:"sent_as,omitempty"`    // the ID of the send, if it differs
	Topic      string    `json:"topic,omitempty"`      // the topic of the send
	Edited     bool      `json:"edited,omitempty"`
	Reason     string    `json:"reason,omitempty"` // reason of the dead letter
	Why        string    `json:"why,omitempty"`    // reason of the skip, the failure or the end of the run
	Report     *Report   `json:"report,omitempty"` // of end
}

// A journal is the audit trail of a job.
type journal struct {
	file    *os.File
	unlock  func() error
	sent    map[exact]Event // redriven letters
	pending map[exact]Event // letters with an intent and no result
	failed  error           // of a write, which may have written a part of a line
}

// openJournal reads a journal, or creates it, and locks it. It removes a last line that a crash has
// truncated. It returns an error if the journal belongs to another group, is in use, or is another
// file.
func openJournal(name, group string) (*journal, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	unlock, err := filelock.Lock(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("journal %w", err), f.Close())
	}
	j := &journal{file: f, unlock: unlock, sent: map[exact]Event{}, pending: map[exact]Event{}}
	if err := j.read(group); err != nil {
		return nil, errors.Join(fmt.Errorf("journal %s: %w", name, err), j.close())
	}
	return j, nil
}

// close ends the journal and its lock.
func (j *journal) close() error { return errors.Join(j.unlock(), j.file.Close()) }

func (j *journal) read(group string) error {
	r, whole := bufio.NewReader(j.file), int64(0)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if !filelock.Torn(n, line, `{"time":`, `{"event":`) {
				return fmt.Errorf("line %d is not a journal entry; give the path of a journal, or of a file that does not exist", n)
			}
			break
		} else if err != nil {
			return err
		}
		whole += int64(len(line))
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("line %d is not a journal entry: %w; give the path of a journal, or of a file that does not exist", n, err)
		}
		k := exact{keyFor(e.Origin, e.MessageID, e.Generation), e.At}
		switch e.Event {
		case eventBegin:
			if e.Group != group {
				return fmt.Errorf("the journal belongs to group %q, not to %q; give another path", e.Group, group)
			}
		case eventIntent:
			j.pending[k] = e
		case eventRedriven:
			j.sent[k] = e
			delete(j.pending, k)
		case eventFailed:
			delete(j.pending, k)
		case eventJob, eventSkipped, eventEnd:
		default:
			return fmt.Errorf("line %d is not a journal entry: its event is %q; give the path of a journal, or of a file that does not exist", n, e.Event)
		}
	}
	if err := j.file.Truncate(whole); err != nil {
		return err
	}
	_, err := j.file.Seek(whole, io.SeekStart)
	return err
}

// write appends events and returns when they are on disk. After a failure it writes nothing: an
// incomplete line must stay the last one, which openJournal removes.
func (j *journal) write(events ...Event) error {
	if len(events) == 0 || j.failed != nil {
		return j.failed
	}
	var b bytes.Buffer
	for i := range events {
		events[i].Time = time.Now().UTC()
		line, err := json.Marshal(&events[i])
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	_, err := j.file.Write(b.Bytes())
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		j.failed = fmt.Errorf("the journal cannot be written: %w; make space on its disk, and continue the job with this journal", err)
	}
	return j.failed
}
