package diskfs

import (
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/histogram"
)

// MeteredFS measures the fsyncs of a Pebble database's write-ahead log.
type MeteredFS struct {
	vfs.FS
	Fsync *histogram.Histogram // how long they took, in nanoseconds
}

// Create implements vfs.FS.
func (fs *MeteredFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.wrap(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (fs *MeteredFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(old, name, c)
	return fs.wrap(name, f, err)
}

// Unwrap implements vfs.FS.
func (fs *MeteredFS) Unwrap() vfs.FS { return fs.FS }

func (fs *MeteredFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return &meteredFile{File: f, fsync: fs.Fsync}, nil
}

// A meteredFile is a file whose syncs are measured.
type meteredFile struct {
	vfs.File
	fsync *histogram.Histogram
}

func (f *meteredFile) measure(sync func() error) error {
	begin := time.Now()
	err := sync()
	if err == nil {
		f.fsync.Observe(int64(time.Since(begin)))
	}
	return err
}

// Sync implements vfs.File.
func (f *meteredFile) Sync() error { return f.measure(f.File.Sync) }

// SyncData implements vfs.File.
func (f *meteredFile) SyncData() error { return f.measure(f.File.SyncData) }
