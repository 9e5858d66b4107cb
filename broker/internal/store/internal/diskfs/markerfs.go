package diskfs

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// MarkerFS syncs the names of new files before a marker names one of them. Pebble creates a
// manifest, then the marker with the name of the current manifest, and then syncs the directory for
// both. It relies on a file system that keeps this order. On others, a power failure could leave
// only the marker.
type MarkerFS struct{ vfs.FS }

// Create implements vfs.FS.
func (fs MarkerFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(fs.PathBase(name), "marker.") {
		if err := SyncDir(fs.FS, fs.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return fs.FS.Create(name, c)
}

// Unwrap implements vfs.FS.
func (fs MarkerFS) Unwrap() vfs.FS { return fs.FS }
