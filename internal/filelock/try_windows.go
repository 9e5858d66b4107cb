package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// try locks the file for this process. It returns false if another one has the lock. The end of
// the process, or Close, unlocks it.
func try(f *os.File) (bool, error) {
	// A range behind all data, because Windows denies reads of a locked range.
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &windows.Overlapped{Offset: 1 << 30})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}

// release ends the lock.
func release(f *os.File) error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{Offset: 1 << 30})
}
