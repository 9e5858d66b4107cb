package filelock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// A Journal is a file of JSON lines that records a job, and that one process writes at a time.
// Several goroutines may use it.
type Journal struct {
	File   File
	advice string
	unlock func() error

	mu     sync.Mutex
	failed error // of a write, which may have written a part of a line
}

// A File is the file of a journal.
type File interface {
	io.WriteCloser
	Name() string
	Sync() error
}

// OpenJournal reads a journal, or creates it, and locks it for this holder. It calls entry for each
// line, and removes a last line that a crash has cut off. The error of a failed write ends with
// advice.
func OpenJournal(path, advice string, entry func(line []byte) error) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	unlock, err := Lock(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("journal %w", err), f.Close())
	}
	j := &Journal{File: f, advice: advice, unlock: unlock}
	if err := read(f, entry); err != nil {
		return nil, errors.Join(fmt.Errorf("journal %s: %w", path, err), j.Close())
	}
	return j, nil
}

func read(f *os.File, entry func(line []byte) error) error {
	r, whole := bufio.NewReader(f), int64(0)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if !Torn(n, line, `{"time":`, `{"event":`) {
				return fmt.Errorf("line %d is not an entry; give the path of a journal, or of a file that does not exist", n)
			}
			break
		}
		if err != nil {
			return err
		}
		whole += int64(len(line))
		if err := entry(line); err != nil {
			return fmt.Errorf("line %d is not an entry: %w; give the path of a journal, or of a file that does not exist", n, err)
		}
	}
	if err := f.Truncate(whole); err != nil {
		return err
	}
	_, err := f.Seek(whole, io.SeekStart)
	return err
}

// Append writes lines. With sync it returns when they are on disk. After a failure it writes
// nothing: an incomplete line must stay the last one, which OpenJournal removes.
func (j *Journal) Append(lines []byte, sync bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	_, err := j.File.Write(lines)
	if err == nil && sync {
		err = j.File.Sync()
	}
	if err != nil {
		j.failed = fmt.Errorf("the journal cannot be written: %w; make space on its disk%s", err, j.advice)
	}
	return j.failed
}

// Failed returns the error of the first write that failed.
func (j *Journal) Failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

// Close ends the journal and its lock.
func (j *Journal) Close() error { return errors.Join(j.unlock(), j.File.Close()) }
