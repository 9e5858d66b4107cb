package diskfs

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	BallastFile = "BALLAST"

	// mostBallast is the size of the ballast: space for about a million acknowledgements, and for
	// the tables of both databases. On a disk of less than 1 GiB it is smallDisk of it, so that
	// there is space for messages: the ballast needs the same space beside it.
	mostBallast = 64 << 20
	smallDisk   = 16

	// fullLook is how often a full disk is looked at, fullPause how long a
	// write that finds no room rests before it is tried again.
	fullLook  = time.Second
	fullPause = 100 * time.Millisecond
)

// IsFull reports whether an error means that the disk or its quota has no space left.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// FullFS lets a Pebble database survive a full disk. A write that finds no space removes the
// ballast, a file that only reserves space, and is repeated. From then on the disk counts as full,
// until there is space for the ballast again and as much beside it. If the ballast does not
// suffice, writes of logs and manifests wait for space, because Pebble ends after their failure.
// Writes of tables fail, and Pebble repeats them.
//
// A sync that fails for lack of space, as on network file systems, is not repeated, because its
// data can be lost.
type FullFS struct {
	vfs.FS
	dir    string
	logger *slog.Logger

	state   atomic.Pointer[DiskFull]
	taken   atomic.Bool   // the ballast was removed, and a goroutine watches the disk
	opened  atomic.Bool   // writes wait; before, opening fails instead
	closing chan struct{} // closed by StopWaiting: nothing waits any more
	stop    sync.Once     // closes closing
	watch   sync.WaitGroup
}

// NewFullFS returns a FullFS over fs with its ballast in the directory dir. Before SetOpened no
// write waits.
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

// SetOpened has writes wait for room from now on. Before, a write that finds none fails.
func (fs *FullFS) SetOpened() { fs.opened.Store(true) }

// StopWaiting has nothing wait for room any more: a write that finds none fails. It may be called
// again.
func (fs *FullFS) StopWaiting() { fs.stop.Do(func() { close(fs.closing) }) }

// missing returns how many bytes are not free that should be, at least 1.
func (fs *FullFS) missing() int64 {
	size, free, _ := fs.space()
	return max(1, 2*size-free)
}

// space returns the size of the ballast, and how many bytes of the disk are free. If the file
// system does not report its space, known is false and free is 0.
func (fs *FullFS) space() (ballast, free int64, known bool) {
	u, err := fs.FS.GetDiskUsage(fs.dir)
	if err != nil || u.TotalBytes == 0 {
		return mostBallast, 0, false
	}
	return int64(min(mostBallast, u.TotalBytes/smallDisk)), int64(u.AvailBytes), true
}

// Ballast returns the path of the ballast.
func (fs *FullFS) Ballast() string { return fs.PathJoin(fs.dir, BallastFile) }

// Prepare makes the ballast if it is not there. Without room for it, the
// disk counts as full from the beginning.
func (fs *FullFS) Prepare() error {
	if _, err := fs.FS.Stat(fs.Ballast()); err == nil {
		return nil
	}
	err := fs.makeBallast()
	if IsFull(err) {
		fs.GiveBack()
		return nil
	}
	return err
}

// makeBallast makes the ballast if as much is left beside it.
func (fs *FullFS) makeBallast() error {
	size, free, known := fs.space()
	if known && free < 2*size {
		return syscall.ENOSPC
	}
	f, err := fs.FS.Create(fs.Ballast(), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// If the file system cannot allocate space beforehand, there is no ballast, and writes wait
	// while the disk is full.
	err = f.Preallocate(0, size)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		_ = fs.FS.Remove(fs.Ballast())
	}
	return err
}

// GiveBack removes the ballast, and looks after the disk until there is room
// for it again. Only the first call does something.
func (fs *FullFS) GiveBack() {
	if !fs.taken.CompareAndSwap(false, true) {
		return
	}
	since := time.Now()
	if err := fs.FS.Remove(fs.Ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		fs.logger.Error("the ballast file was not removed", "file", fs.Ballast(), "error", err)
	}
	fs.state.Store(&DiskFull{since, fs.missing()})
	size, _, _ := fs.space()
	fs.logger.Error("disk full; sends are rejected until space is free, consumers continue", "directory", fs.dir, "needed_bytes", 2*size)
	fs.watch.Go(func() {
		for {
			select {
			case <-fs.closing:
				return
			case <-time.After(fullLook):
			}
			if fs.makeBallast() == nil {
				fs.state.Store(nil)
				fs.taken.Store(false)
				fs.logger.Info("disk has free space again; sends are accepted", "directory", fs.dir)
				return
			}
			fs.state.Store(&DiskFull{since, fs.missing()})
		}
	})
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
	fs.GiveBack()
	err = change()
	for IsFull(err) && fs.opened.Load() {
		select {
		case <-fs.closing:
			return err
		case <-time.After(fullPause):
		}
		fs.GiveBack() // there may be a new one
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

// Create implements vfs.FS.
func (fs *FullFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
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
