//go:build unix && !aix && !solaris

package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A process that is being started has a copy of each open file of this one until it runs its program.
// The end of a lock does not wait for that.
func TestUnlockWhileAProcessStarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, path)
	raw, err := j.File.(*os.File).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	copied := -1
	if err := errors.Join(raw.Control(func(fd uintptr) { copied, err = syscall.Dup(int(fd)) }), err); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(copied)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := open(t, path)
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
