package store

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// groupsSyncDelay is how long after a write to the groups database its fsync
// begins if nobody asks for it: what a power failure, not the end of the
// process, can take back of what nobody was answered.
const groupsSyncDelay = 20 * time.Millisecond

// lazyFS makes the write-ahead log of a Pebble database survive the end of the
// process, but not at once a power failure: a sync of a log file returns when
// the data is written. The real sync follows within delay, or when
// sync is called, for whoever needs it. Everything else, tables and
// manifests, is synced as Pebble asks.
type lazyFS struct {
	vfs.FS
	delay time.Duration
	fail  func(error) // told of a sync that failed: what it was to make safe may be lost

	written atomic.Int64 // writes to log files that have returned

	mu      sync.Mutex
	files   map[*lazyFile]struct{} // guarded by mu: the open log files
	synced  int64                  // guarded by mu: the writes that are on disk, a lower bound
	err     error                  // guarded by mu: of a sync that failed; there is none after it
	running *syncRound             // guarded by mu: the round under way
	next    *syncRound             // guarded by mu: who comes too late for it waits for this one
}

// A syncRound is one sync of all log files for all who wait for it.
type syncRound struct {
	covers int64 // the writes before it; known once it runs
	done   chan struct{}
	err    error // valid once done is closed
}

func newLazyFS(fs vfs.FS, delay time.Duration, fail func(error)) *lazyFS {
	return &lazyFS{FS: fs, delay: delay, fail: fail, files: map[*lazyFile]struct{}{}}
}

// position tells sync what was written so far.
func (fs *lazyFS) position() int64 { return fs.written.Load() }

// sync begins, or joins, an fsync of the log that covers what was written when
// position returned at, and returns a channel that is closed when it is done.
// One round runs at a time, beside further writes, and serves all who came
// before it began. A nil round means that all of it is on disk already.
func (fs *lazyFS) sync(at int64) (*syncRound, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	switch {
	case fs.err != nil:
		return nil, fs.err
	case fs.synced >= at:
		return nil, nil
	case fs.running != nil && fs.running.covers >= at:
		return fs.running, nil
	case fs.next == nil:
		fs.next = &syncRound{done: make(chan struct{})}
		if fs.running == nil {
			fs.begin()
			return fs.running, nil
		}
	}
	return fs.next, nil
}

// begin starts the round for those who wait. mu is held.
func (fs *lazyFS) begin() {
	r := fs.next
	fs.running, fs.next = r, nil
	if r == nil {
		return
	}
	r.covers = fs.written.Load()
	files := make([]*lazyFile, 0, len(fs.files))
	for f := range fs.files {
		files = append(files, f)
	}
	go func() { // ends with its fsyncs, which a file's Close waits for
		for _, f := range files {
			if err := f.syncNow(); err != nil && r.err == nil {
				r.err = err
			}
		}
		fs.mu.Lock()
		if r.err == nil {
			r.err = fs.err // of a file that was closed meanwhile
		}
		if r.err == nil {
			fs.synced = max(fs.synced, r.covers)
		}
		fs.begin()
		fs.mu.Unlock()
		close(r.done)
	}()
}

// failed notes a sync that failed. A later one may well succeed without the
// data being there, so nothing is believed any more.
func (fs *lazyFS) failed(err error) {
	fs.mu.Lock()
	first := fs.err == nil
	if first {
		fs.err = err
	}
	fs.mu.Unlock()
	if first {
		fs.fail(err)
	}
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
	lf := &lazyFile{File: f, fs: fs}
	fs.mu.Lock()
	fs.files[lf] = struct{}{}
	fs.mu.Unlock()
	return lf, nil
}

// A lazyFile postpones syncs.
type lazyFile struct {
	vfs.File
	fs      *lazyFS
	written atomic.Int64 // writes that have returned

	mu      sync.Mutex
	pending *time.Timer   // guarded by mu; the sync to come
	running chan struct{} // guarded by mu; closed when the sync under way is done
	synced  int64         // guarded by mu; the writes that are on disk
	closed  bool          // guarded by mu; no sync begins any more
	err     error         // guarded by mu; of the last sync: told by the next one
}

// Write implements vfs.File.
func (f *lazyFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.written.Add(1)
	f.fs.written.Add(1) // after the file's own: a round that covers this one must not think the file clean
	return n, err
}

func (f *lazyFile) later() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending == nil && f.err == nil {
		f.pending = time.AfterFunc(f.fs.delay, func() { _ = f.syncNow() })
	}
	return f.err
}

// syncNow syncs what is written, one call after another, and returns the
// error of any sync of the file so far.
func (f *lazyFile) syncNow() error {
	done := make(chan struct{})
	f.mu.Lock()
	if f.pending != nil {
		f.pending.Stop() // this sync does what it would; if it is too late, it finds nothing to do
		f.pending = nil
	}
	before := f.running
	if !f.closed {
		f.running = done
	}
	closed := f.closed
	f.mu.Unlock()
	if before != nil {
		<-before
	}
	f.mu.Lock()
	to := f.written.Load()
	clean := to == f.synced
	err := f.err
	f.mu.Unlock()
	if closed || clean || err != nil {
		if !closed {
			close(done)
		}
		return err
	}
	err = f.File.SyncData()
	f.mu.Lock()
	if err == nil {
		f.synced = to
	} else {
		f.err = err
	}
	f.mu.Unlock()
	if err != nil {
		f.fs.failed(err)
	}
	close(done)
	return err
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
	err := f.syncNow()
	f.mu.Lock()
	f.closed = true
	running := f.running
	f.mu.Unlock()
	if running != nil {
		<-running
	}
	f.fs.mu.Lock()
	delete(f.fs.files, f) // only now: a round that does not see it must find it synced
	f.fs.mu.Unlock()
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	return err
}
