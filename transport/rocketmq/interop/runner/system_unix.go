//go:build unix && !aix && !solaris

package runner

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// tryLock locks the file for this process. It returns false if another one has the lock. The end of
// the process, or Close, unlocks it.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// detach makes a process that outlives the terminal and the interrupts of this one.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
