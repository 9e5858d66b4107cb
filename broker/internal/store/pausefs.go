package store

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// retryPause is how long a broken store rests before it makes another file.
const retryPause = 100 * time.Millisecond

// pausingFS keeps Pebble, which tries a failed flush or compaction again at
// once and for ever, from taking a whole processor for it.
type pausingFS struct {
	vfs.FS
	broken  func() error
	damaged func() bool // a corrupt file was read just now
}

// Create implements vfs.FS.
func (fs *pausingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.broken(); err != nil {
		<-time.After(retryPause)
		return nil, err
	}
	if isTable(name) && fs.damaged() {
		<-time.After(damagePause)
	}
	return fs.FS.Create(name, c)
}

// Unwrap implements vfs.FS.
func (fs *pausingFS) Unwrap() vfs.FS { return fs.FS }

// GetDiskUsage implements vfs.FS. Pebble can do without it, so a failure is
// not one of the store.
func (fs *pausingFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	u, err := fs.FS.GetDiskUsage(path)
	if err != nil {
		err = vfs.ErrUnsupported
	}
	return u, err
}
