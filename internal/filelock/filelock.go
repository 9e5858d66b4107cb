// Package filelock locks files that one process writes at a time.
package filelock

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// A BusyError is the error of a file that another process, or another part of this one, writes.
type BusyError struct {
	Path string
	PID  int // of the process; 0 if it is not known
}

func (e *BusyError) Error() string {
	who := "another process"
	switch e.PID {
	case 0:
	case os.Getpid():
		who = fmt.Sprintf("this process (%d)", e.PID)
	default:
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s is in use by %s; wait for its end, or give the path of another file", e.Path, who)
}

// Lock locks an open file for this holder alone, and writes the process ID into a file beside it,
// with the suffix ".pid", if the disk has space for it. It does not wait: the error is a BusyError
// if the file is locked. The lock does not keep other programs from reading the file. Unlock ends
// it and removes the file beside it; call it before the file is closed. The end of the process ends
// the lock too.
func Lock(f *os.File) (unlock func() error, err error) {
	path := f.Name()
	switch ok, err := Try(f); {
	case err != nil:
		return nil, fmt.Errorf("%s cannot be locked: %w; give a path on a local disk", path, err)
	case !ok:
		return nil, &BusyError{path, pid(path)}
	}
	beside := path + ".pid"
	if err := os.WriteFile(beside, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		_ = os.Remove(beside)                          // an empty one on a full disk
		return func() error { return release(f) }, nil //nolint:nilerr // the file is locked; other processes do not learn by whom
	}
	return func() error {
		err := os.Remove(beside)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return errors.Join(err, release(f))
	}, nil
}

// Try locks an open file for this holder alone until the file is closed. It returns false if
// another one has the lock.
func Try(f *os.File) (bool, error) { return try(f) }

// pid returns the process ID that the holder of a lock has written; 0 if there is none.
func pid(path string) int {
	text, err := os.ReadFile(path + ".pid")
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text))) // 0 while the holder writes it
	return n
}

// Torn reports whether the last line of a journal, which has no end, can be the beginning of an
// entry that a crash or a full disk has cut off. Entries begin with one of the beginnings. Behind
// other lines, zero bytes are an entry that a power failure has kept from the disk. Another text is
// a file of the user, which must not be truncated.
func Torn(number int, line []byte, beginnings ...string) bool {
	if number > 1 && len(bytes.Trim(line, "\x00")) == 0 {
		return true
	}
	for _, b := range beginnings {
		if n := min(len(b), len(line)); string(line[:n]) == b[:n] {
			return true
		}
	}
	return len(line) == 0
}
