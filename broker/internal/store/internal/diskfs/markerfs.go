package diskfs

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// MarkerFS makes the names of new files safe before a marker names one of
// them. Pebble makes a manifest, then the marker that says which manifest holds,
// and then syncs the directory for both: it relies on a file system that keeps the
// order. On one that does not, a power failure could leave the marker alone.
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
