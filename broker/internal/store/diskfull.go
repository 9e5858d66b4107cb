package store

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	ballastFile = "BALLAST"

	// ballastSize is what the ballast keeps from others: room for about a million
	// acknowledgements, and for the tables of both databases.
	ballastSize = 64 << 20

	// fullLook is how often a full disk is looked at, fullPause how long a
	// write that finds no room rests before it is tried again.
	fullLook  = time.Second
	fullPause = 100 * time.Millisecond
)

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// fullFS lets a Pebble database outlive a full disk. A write that finds no room
// gives the ballast back, a file that is there for nothing else, and is made once
// more; from then on the disk counts as full, until there is room for
// the ballast again, and as much beside it. If the ballast does not suffice, what writes logs and
// manifests waits for room, since Pebble would give up if it failed; what writes
// tables fails, and Pebble tries it again.
//
// A sync that fails for want of room, as on network file systems, is not
// helped: what it was to make safe may be lost.
type fullFS struct {
	vfs.FS
	dir    string
	logger *slog.Logger

	full    atomic.Pointer[DiskFull]
	taken   atomic.Bool   // the ballast was given back, and somebody looks after the disk
	opened  atomic.Bool   // writes wait; before, opening fails instead
	closing chan struct{} // closed by stopWaiting: nothing waits any more
	watch   sync.WaitGroup

	stopWaiting func()
}

func newFullFS(fs vfs.FS, dir string, logger *slog.Logger) *fullFS {
	closing := make(chan struct{})
	return &fullFS{FS: fs, dir: dir, logger: logger, closing: closing, stopWaiting: sync.OnceFunc(func() { close(closing) })}
}

// A DiskFull tells of a full disk.
type DiskFull struct {
	Since   time.Time
	Missing int64 // bytes until it counts as full no more, when it was looked at last; at least 1
}

// DiskFull returns nil, or what is known of the disk if it is full: what can
// wait should be refused, so that what is left is there for the groups'
// progress. It ends by itself when there is room again.
func (s *Store) DiskFull() *DiskFull {
	if s.room == nil {
		return nil
	}
	return s.room.full.Load()
}

// missing returns how many bytes are not free that should be, at least 1.
func (fs *fullFS) missing() int64 {
	u, err := fs.FS.GetDiskUsage(fs.dir)
	if err != nil {
		return 2 * ballastSize
	}
	return max(1, 2*ballastSize-int64(u.AvailBytes))
}

func (fs *fullFS) ballast() string { return fs.PathJoin(fs.dir, ballastFile) }

// prepare makes the ballast if it is not there. Without room for it, the
// disk counts as full from the beginning.
func (fs *fullFS) prepare() error {
	if _, err := fs.FS.Stat(fs.ballast()); err == nil {
		return nil
	}
	err := fs.makeBallast()
	if isFull(err) {
		fs.giveBack()
		return nil
	}
	return err
}

// makeBallast makes the ballast if as much is left beside it.
func (fs *fullFS) makeBallast() error {
	if u, err := fs.FS.GetDiskUsage(fs.dir); err == nil && u.TotalBytes > 0 && u.AvailBytes < 2*ballastSize {
		return syscall.ENOSPC
	}
	f, err := fs.FS.Create(fs.ballast(), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// Where files cannot be given room beforehand, there is no ballast, and a
	// full disk is only waited for.
	err = f.Preallocate(0, ballastSize)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		_ = fs.FS.Remove(fs.ballast())
	}
	return err
}

// giveBack removes the ballast, and looks after the disk until there is room
// for it again. Only the first call does something.
func (fs *fullFS) giveBack() {
	if !fs.taken.CompareAndSwap(false, true) {
		return
	}
	since := time.Now()
	if err := fs.FS.Remove(fs.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		fs.logger.Error("the ballast could not be given back", "file", fs.ballast(), "error", err)
	}
	fs.full.Store(&DiskFull{since, fs.missing()})
	fs.logger.Error("the disk is full: sends are refused until there is room; what consumers do goes on", "directory", fs.dir, "needed_bytes", 2*ballastSize)
	fs.watch.Go(func() {
		for {
			select {
			case <-fs.closing:
				return
			case <-time.After(fullLook):
			}
			if fs.makeBallast() == nil {
				fs.full.Store(nil)
				fs.taken.Store(false)
				fs.logger.Info("the disk has room again: sends are accepted", "directory", fs.dir)
				return
			}
			fs.full.Store(&DiskFull{since, fs.missing()})
		}
	})
}

// StopWaiting has nothing wait for room on a full disk any more, as before Close: a write that
// finds none, the ballast included, be it of a log or of a table, breaks the store, and who waits
// for it is told.
func (s *Store) StopWaiting() {
	if s.room != nil {
		s.room.stopWaiting()
	}
}

// stopped reports whether nothing waits for room any more.
func (fs *fullFS) stopped() bool {
	select {
	case <-fs.closing:
		return true
	default:
		return false
	}
}

// close ends all waiting.
func (fs *fullFS) close() {
	fs.stopWaiting()
	fs.watch.Wait()
}

// try makes a change, and again if there was no room.
func (fs *fullFS) try(name string, change func() error) error {
	err := change()
	if !isFull(err) {
		return err
	}
	fs.giveBack()
	err = change()
	for isFull(err) && fs.opened.Load() {
		select {
		case <-fs.closing:
			return err
		case <-time.After(fullPause):
		}
		fs.giveBack() // there may be a new one
		if err = change(); isTable(name) {
			return err
		}
	}
	return err
}

func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || isValues(name)
}

func (fs *fullFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &fullFile{f, fs, name}, nil
}

// Create implements vfs.FS.
func (fs *fullFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	err = fs.try(name, func() error { f, err = fs.FS.Create(name, c); return err })
	return fs.wrap(name, f, err)
}

// OpenReadWrite implements vfs.FS.
func (fs *fullFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (f vfs.File, err error) {
	err = fs.try(name, func() error { f, err = fs.FS.OpenReadWrite(name, c, o...); return err })
	return fs.wrap(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (fs *fullFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	err = fs.try(name, func() error { f, err = fs.FS.ReuseForWrite(old, name, c); return err })
	return fs.wrap(name, f, err)
}

// Link implements vfs.FS.
func (fs *fullFS) Link(old, name string) error {
	return fs.try(name, func() error { return fs.FS.Link(old, name) })
}

// Rename implements vfs.FS.
func (fs *fullFS) Rename(old, name string) error {
	return fs.try(name, func() error { return fs.FS.Rename(old, name) })
}

// MkdirAll implements vfs.FS.
func (fs *fullFS) MkdirAll(name string, perm os.FileMode) error {
	return fs.try(name, func() error { return fs.FS.MkdirAll(name, perm) })
}

// Unwrap implements vfs.FS.
func (fs *fullFS) Unwrap() vfs.FS { return fs.FS }

// A fullFile is a file of a fullFS.
type fullFile struct {
	vfs.File
	fs   *fullFS
	name string
}

// Write implements vfs.File. A write that was made in part goes on where it stopped.
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
