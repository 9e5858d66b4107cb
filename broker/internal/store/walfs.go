package store

import (
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// groupsSyncDelay is how long after a write to the groups database its fsync
// begins: what a power failure, not the end of the process, can take back.
const groupsSyncDelay = 20 * time.Millisecond

// lazyFS makes the write-ahead log of a Pebble database survive the end of the
// process, but not at once a power failure: a sync of a log file returns when
// the data is written, and the real sync follows within groupsSyncDelay.
// Everything else, tables and manifests, is synced as Pebble asks.
type lazyFS struct {
	vfs.FS
	delay time.Duration
}

// Create implements vfs.FS.
func (fs *lazyFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.wrap(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (fs *lazyFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(old, name, c)
	return fs.wrap(name, f, err)
}

// Unwrap implements vfs.FS.
func (fs *lazyFS) Unwrap() vfs.FS { return fs.FS }

func (fs *lazyFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return &lazyFile{File: f, delay: fs.delay}, nil
}

// A lazyFile postpones syncs.
type lazyFile struct {
	vfs.File
	delay time.Duration

	mu      sync.Mutex
	pending *time.Timer   // guarded by mu; the sync to come
	running chan struct{} // guarded by mu; closed when the sync under way is done
	closed  bool          // guarded by mu; no sync begins any more
	err     error         // guarded by mu; of the last sync: told by the next one
}

func (f *lazyFile) later() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending == nil && f.err == nil {
		f.pending = time.AfterFunc(f.delay, f.syncNow)
	}
	return f.err
}

func (f *lazyFile) syncNow() {
	done := make(chan struct{})
	f.mu.Lock()
	f.pending = nil
	if f.closed {
		f.mu.Unlock()
		return
	}
	before := f.running
	f.running = done
	f.mu.Unlock()
	if before != nil {
		<-before
	}
	err := f.File.SyncData()
	f.mu.Lock()
	if err != nil {
		f.err = err
	}
	f.mu.Unlock()
	close(done)
}

// Sync, SyncData and SyncTo return at once, with the error of an earlier sync.
func (f *lazyFile) Sync() error { return f.later() }

// SyncData is Sync.
func (f *lazyFile) SyncData() error { return f.later() }

// SyncTo is Sync; it reports a full sync, since the caller need not do more.
func (f *lazyFile) SyncTo(int64) (bool, error) { return true, f.later() }

// Close syncs what is outstanding and closes the file: Pebble begins the next
// log file only when this one is safe.
func (f *lazyFile) Close() error {
	f.mu.Lock()
	outstanding := f.pending != nil
	if outstanding {
		f.pending.Stop() // if it is too late, both sync
	}
	f.mu.Unlock()
	if outstanding {
		f.syncNow()
	}
	f.mu.Lock()
	f.closed = true
	running := f.running
	f.mu.Unlock()
	if running != nil {
		<-running
	}
	f.mu.Lock()
	err := f.err
	f.mu.Unlock()
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	return err
}
