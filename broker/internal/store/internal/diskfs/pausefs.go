package diskfs

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// retryPause is how long a broken store rests before it makes another file.
const retryPause = 100 * time.Millisecond

// PausingFS bounds the processor time of Pebble's retries: Pebble repeats a failed flush or
// compaction at once and without end.
type PausingFS struct {
	vfs.FS
	Store  interface{ Broken() error } // Broken returns why the store can write no more; nil while it can
	Damage *DamageNotes
}

// Create implements vfs.FS.
func (fs *PausingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Store.Broken(); err != nil {
		<-time.After(retryPause)
		return nil, err
	}
	if IsTable(name) && fs.Damage.Recent() {
		<-time.After(damagePause)
	}
	return fs.FS.Create(name, c)
}

// Unwrap implements vfs.FS.
func (fs *PausingFS) Unwrap() vfs.FS { return fs.FS }

// GetDiskUsage implements vfs.FS. Pebble can do without it, so a failure is
// not one of the store.
func (fs *PausingFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	u, err := fs.FS.GetDiskUsage(path)
	if err != nil {
		err = vfs.ErrUnsupported
	}
	return u, err
}
