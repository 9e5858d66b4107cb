package diskfs

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	BallastFile = "BALLAST"
	ReserveFile = "RESERVE"

	// StartFile exists while a start uses the space of the ballast or of the reserve.
	StartFile = "START"

	// mostBallast is the size of the ballast: space for about a million acknowledgements, and for
	// the tables of both databases. On a disk of less than 1 GiB it is smallDisk of it, so that
	// there is space for messages: the ballast needs the same space beside it.
	mostBallast = 64 << 20
	smallDisk   = 16

	// mostReserve is the size of the reserve for a start, on a disk of less than 768 MiB
	// reservePart of it. Opening writes tables with all writes that are only in logs, before it
	// removes the logs: two memtables and a batch of each database (Space.MemTable, Space.Held).
	mostReserve = 96 << 20
	reservePart = 8

	// keepPart is the part of the reserve that a full disk keeps free after a start, for the
	// consumers and for the removal of messages. The reserve is smaller then, but at least half of
	// it, if so much is free. Less than a quarter is not worth a reserve.
	keepPart  = 8
	halfPart  = 2
	leastPart = 4

	// fullLook is how often a full disk is looked at, fullPause how long a
	// write that finds no room rests before it is tried again. While the databases are opened,
	// it is tried startTries times.
	fullLook   = time.Second
	fullPause  = 100 * time.Millisecond
	startTries = 20
)

// IsFull reports whether an error means that the disk or its quota has no space left.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// A Space is how a disk is divided.
type Space struct {
	Ballast, Reserve int64
}

// SpaceOf returns how a disk of so many bytes is divided; 0 means that the size is unknown.
func SpaceOf(total uint64) Space {
	if total == 0 {
		return Space{mostBallast, mostReserve}
	}
	return Space{int64(min(mostBallast, total/smallDisk)), int64(min(mostReserve, total/reservePart))}
}

// MemTable returns the size of the larger memtables, so that the tables of two of them and of two
// of the smaller ones fit in the reserve beside Held: 12 MiB unless the disk is small.
func (s Space) MemTable() uint64 { return uint64(max(s.Reserve/8, 256<<10)) }

// Held returns the largest number of bytes of writes that are not on disk, which can become one
// batch: 64 MiB unless the disk is small.
func (s Space) Held() int64 { return s.Reserve / 3 * 2 }

// FullFS lets a Pebble database survive a full disk, and a kill of the process on a full disk. It
// owns two files that only reserve space.
//
// A write that finds no space removes the ballast and is repeated. From then on the disk counts as
// full, until there is space for the ballast again and as much beside it. If the ballast does not
// suffice, writes of logs and manifests wait for space, because Pebble ends after their failure.
// Writes of tables fail, and Pebble repeats them.
//
// The reserve is for the next start, which writes the content of the logs to tables before it
// removes the logs. Only such a start removes it. The disk counts as full until it is there again.
//
// A sync that fails for lack of space, as on network file systems, is not repeated, because its
// data can be lost.
type FullFS struct {
	vfs.FS
	dir    string
	logger *slog.Logger

	state   atomic.Pointer[DiskFull]
	spent   atomic.Bool   // there is no reserve: compactions would take its space
	opened  atomic.Bool   // writes wait; before, opening fails instead
	closing chan struct{} // closed by StopWaiting: nothing waits any more
	stop    sync.Once     // closes closing
	watch   sync.WaitGroup

	mu    sync.Mutex // held while the ballast and the reserve change: writes without space wait for them anyway
	start []byte     // guarded by mu: content of StartFile, which is not written yet; nil for none
}

// NewFullFS returns a FullFS over fs with its files in the directory dir. Before SetOpened no
// write waits for long.
func NewFullFS(fs vfs.FS, dir string, logger *slog.Logger) *FullFS {
	return &FullFS{FS: fs, dir: dir, logger: logger, closing: make(chan struct{})}
}

// A DiskFull is the state of a full disk.
type DiskFull struct {
	Since   time.Time
	Missing int64 // bytes until it counts as full no more, when it was looked at last; at least 1
}

// Full returns the state of the disk if it is full, and nil otherwise.
func (fs *FullFS) Full() *DiskFull { return fs.state.Load() }

// Opened reports whether SetOpened was called.
func (fs *FullFS) Opened() bool { return fs.opened.Load() }

// SetOpened has writes wait for room from now on, and creates the reserve for the next start if it
// is not there. Before, a write that finds no room fails.
func (fs *FullFS) SetOpened() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.opened.Store(true)
	fs.start = nil
	err := fs.makeReserve()
	switch {
	case IsFull(err):
		fs.begin()
	case err != nil:
		fs.logger.Warn("no space is reserved for the next start; if the broker is killed while the disk is full, it can need free space to start", "file", fs.reserve(), "error", err)
	}
}

// StopWaiting has nothing wait for room any more: a write that finds none fails. It may be called
// again.
func (fs *FullFS) StopWaiting() { fs.stop.Do(func() { close(fs.closing) }) }

// missing returns how many bytes are not free that should be, at least 1.
func (fs *FullFS) missing() int64 {
	size, free, _ := fs.Space()
	need := 2 * size.Ballast
	if fs.spent.Load() {
		need += size.Reserve
	}
	return max(1, need-free)
}

// Space returns how the disk is divided, and how many of its bytes are free. If the file system
// does not report its space, known is false and free is 0.
func (fs *FullFS) Space() (size Space, free int64, known bool) {
	u, err := fs.FS.GetDiskUsage(fs.dir)
	if err != nil || u.TotalBytes == 0 {
		return SpaceOf(0), 0, false
	}
	return SpaceOf(u.TotalBytes), int64(u.AvailBytes), true
}

func (fs *FullFS) ballast() string { return fs.PathJoin(fs.dir, BallastFile) }
func (fs *FullFS) reserve() string { return fs.PathJoin(fs.dir, ReserveFile) }
func (fs *FullFS) started() string { return fs.PathJoin(fs.dir, StartFile) }

func (fs *FullFS) exists(name string) bool {
	_, err := fs.FS.Stat(name)
	return err == nil
}

// Prepare creates the ballast and the reserve before the databases are opened. Without room for the
// ballast, the disk counts as full from the beginning. start is the content of StartFile if the
// start will need their space.
func (fs *FullFS) Prepare(start []byte) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.start = start
	err := fs.makeReserve()
	if err == nil {
		err = fs.makeBallast()
	}
	if IsFull(err) {
		if !fs.exists(fs.ballast()) {
			fs.begin()
		}
		return nil
	}
	return err
}

// makeReserve creates the reserve if it is not there, and enlarges a smaller one if there is ample
// space. mu is held.
func (fs *FullFS) makeReserve() error {
	size, free, known := fs.Space()
	exists := fs.exists(fs.reserve())
	n := size.Reserve
	if known && free < size.Reserve+2*size.Ballast {
		switch {
		case exists:
			fs.spent.Store(false)
			return nil
		case !fs.opened.Load(): // the start may need the space
			fs.spent.Store(true)
			return syscall.ENOSPC
		}
		n = min(n, max(free-n/keepPart, min(free, n/halfPart)))
		if n < size.Reserve/leastPart {
			fs.spent.Store(true)
			return syscall.ENOSPC
		}
	}
	if err := fs.allocate(fs.reserve(), n); err != nil {
		fs.spent.Store(IsFull(err))
		return err
	}
	fs.spent.Store(false)
	if err := fs.FS.Remove(fs.started()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// makeBallast creates the ballast if it is not there, and if as much is left beside it. mu is held.
func (fs *FullFS) makeBallast() error {
	if fs.exists(fs.ballast()) {
		return nil
	}
	size, free, known := fs.Space()
	if known && free < 2*size.Ballast {
		return syscall.ENOSPC
	}
	return fs.allocate(fs.ballast(), size.Ballast)
}

// allocate lets a file without content take size bytes of the disk.
func (fs *FullFS) allocate(name string, size int64) error {
	existed := fs.exists(name)
	f, err := fs.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// If the file system cannot allocate space beforehand, the file takes none: writes wait while
	// the disk is full, and a start can need free space.
	err = f.Preallocate(0, size)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	err = errors.Join(err, f.Close())
	if err != nil && !existed {
		_ = fs.FS.Remove(name)
	}
	return err
}

// remove removes one of the files, and first records the start that needs its space. mu is held.
func (fs *FullFS) remove(name string) {
	if err := fs.FS.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		fs.logger.Error("the space of a file that reserves it was not freed", "file", name, "error", err)
	}
	if fs.start != nil && WriteFile(fs.FS, fs.started(), fs.start) == nil {
		fs.start = nil
	}
}

// begin has the disk count as full, and looks after it until there is room for the reserve and for
// the ballast. mu is held.
func (fs *FullFS) begin() {
	if fs.state.Load() != nil {
		return
	}
	since := time.Now()
	missing := fs.missing()
	fs.state.Store(&DiskFull{since, missing})
	fs.logger.Error("disk full; sends are rejected until space is free, consumers continue", "directory", fs.dir, "needed_bytes", missing)
	fs.watch.Go(func() {
		for {
			pause := fullLook
			if fs.spent.Load() {
				pause = fullPause
			}
			select {
			case <-fs.closing:
				return
			case <-time.After(pause):
			}
			if fs.look() {
				return
			}
			fs.state.Store(&DiskFull{since, fs.missing()})
		}
	})
}

// look creates the missing files, and reports whether they are all there, so that the disk is not
// full any more.
func (fs *FullFS) look() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if !fs.opened.Load() || IsFull(fs.makeReserve()) || fs.makeBallast() != nil {
		return false
	}
	fs.state.Store(nil)
	fs.logger.Info("disk has free space again; sends are accepted", "directory", fs.dir)
	return true
}

// giveBack removes the ballast: the disk is full.
func (fs *FullFS) giveBack() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.remove(fs.ballast())
	fs.begin()
}

// giveReserve removes the reserve, so that a start can use its space.
func (fs *FullFS) giveReserve() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.opened.Load() || !fs.exists(fs.reserve()) {
		return
	}
	fs.spent.Store(true)
	fs.remove(fs.reserve())
	fs.logger.Warn("disk full; the broker starts in the space that is reserved for it", "directory", fs.dir)
}

// Stopped reports whether nothing waits for room any more.
func (fs *FullFS) Stopped() bool {
	select {
	case <-fs.closing:
		return true
	default:
		return false
	}
}

// Close ends all waiting.
func (fs *FullFS) Close() {
	fs.StopWaiting()
	fs.watch.Wait()
}

// try makes a change, and again if there was no room.
func (fs *FullFS) try(name string, change func() error) error {
	err := change()
	if !IsFull(err) {
		return err
	}
	fs.giveBack()
	if err = change(); !IsFull(err) {
		return err
	}
	if !fs.opened.Load() {
		fs.giveReserve()
		err = change()
		for n := 0; IsFull(err) && n < startTries; n++ {
			<-time.After(fullPause) // also after Close: Pebble repeats a failed flush without end
			err = change()
		}
		return err
	}
	for IsFull(err) {
		select {
		case <-fs.closing:
			return err
		case <-time.After(fullPause):
		}
		fs.giveBack() // there may be a new one
		if err = change(); IsTable(name) {
			return err
		}
	}
	return err
}

func (fs *FullFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &fullFile{f, fs, name}, nil
}

// compactions are the categories of Pebble's writes that can wait for space.
var compactions = []vfs.DiskWriteCategory{"pebble-compaction", "pebble-blob-file-rewrite"}

// Create implements vfs.FS. While there is no reserve, compactions create nothing: they would take
// the space that is for the next start.
func (fs *FullFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	if fs.spent.Load() && slices.Contains(compactions, c) {
		select {
		case <-fs.closing:
		case <-time.After(fullPause):
		}
		return nil, syscall.ENOSPC
	}
	err = fs.try(name, func() error { f, err = fs.FS.Create(name, c); return err })
	return fs.wrap(name, f, err)
}

// OpenReadWrite implements vfs.FS.
func (fs *FullFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (f vfs.File, err error) {
	err = fs.try(name, func() error { f, err = fs.FS.OpenReadWrite(name, c, o...); return err })
	return fs.wrap(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (fs *FullFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	err = fs.try(name, func() error { f, err = fs.FS.ReuseForWrite(old, name, c); return err })
	return fs.wrap(name, f, err)
}

// Link implements vfs.FS.
func (fs *FullFS) Link(old, name string) error {
	return fs.try(name, func() error { return fs.FS.Link(old, name) })
}

// Rename implements vfs.FS.
func (fs *FullFS) Rename(old, name string) error {
	return fs.try(name, func() error { return fs.FS.Rename(old, name) })
}

// MkdirAll implements vfs.FS.
func (fs *FullFS) MkdirAll(name string, perm os.FileMode) error {
	return fs.try(name, func() error { return fs.FS.MkdirAll(name, perm) })
}

// Unwrap implements vfs.FS.
func (fs *FullFS) Unwrap() vfs.FS { return fs.FS }

// A fullFile is a file of a FullFS.
type fullFile struct {
	vfs.File
	fs   *FullFS
	name string
}

// Preallocate implements vfs.File. Pebble allocates space for logs beforehand. On a full disk that
// would take the space of a million acknowledgements.
func (f *fullFile) Preallocate(offset, length int64) error {
	if f.fs.Full() != nil || f.fs.spent.Load() {
		return nil
	}
	return f.File.Preallocate(offset, length)
}

// Write implements vfs.File. A partial write continues where it stopped.
func (f *fullFile) Write(p []byte) (n int, err error) {
	err = f.fs.try(f.name, func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt implements vfs.File.
func (f *fullFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.fs.try(f.name, func() error {
		m, err := f.File.WriteAt(p[n:], at+int64(n))
		n += m
		return err
	})
	return n, err
}
