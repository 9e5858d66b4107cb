//go:build unix && !aix && !solaris

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// try locks the file for this process. It returns false if another one has the lock. The end of
// the process, or Close, unlocks it.
func try(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// release ends the lock at once. A Close alone would leave it to a process that is being started,
// which has a copy of the file until it runs its program.
func release(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
