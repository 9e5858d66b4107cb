//go:build unix && !aix && !solaris

package filelock

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// A process that is being started has a copy of each open file of this one until it runs its
// program. The end of a lock does not wait for that.
func TestUnlockWhileAProcessStarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, path)
	raw := assert.Value(j.File.(*os.File).SyscallConn())(t)
	copied := -1
	assert.Must(t, raw.Control(func(fd uintptr) { copied = assert.Value(syscall.Dup(int(fd)))(t) }))
	defer syscall.Close(copied)
	assert.Must(t, j.Close())
	again, _ := open(t, path)
	assert.NoError(t, again.Close())
}
