package broker_test

import (
	"maps"
	"math/rand/v2"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A quotaFS is a disk of limited size in memory. Writes to a file that was removed meanwhile do not
// count.
type quotaFS struct {
	*vfs.MemFS

	mu    sync.Mutex
	quota int64            // guarded by mu
	total int64            // the reported size of the disk
	sizes map[string]int64 // guarded by mu: the size of each file

	order  sync.Mutex        // held over before and the change
	before func(name string) // guarded by order: called before each change of a file; nil: none
}

func newQuotaFS() *quotaFS {
	return &quotaFS{MemFS: vfs.NewCrashableMem(), quota: 1 << 40, total: 1 << 40, sizes: map[string]int64{}}
}

// kill returns the disk after a kill of the process that uses it: the operating system keeps all
// that was written.
func (fs *quotaFS) kill() *quotaFS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return &quotaFS{MemFS: fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}),
		quota: fs.quota, total: fs.total, sizes: maps.Clone(fs.sizes)}
}

// each has a function called before each change from now on, one call after another.
func (fs *quotaFS) each(before func(name string)) {
	fs.order.Lock()
	defer fs.order.Unlock()
	fs.before = before
}

// change makes one change. Nothing else changes meanwhile.
func (fs *quotaFS) change(name string, do func()) {
	fs.order.Lock()
	defer fs.order.Unlock()
	if fs.before != nil {
		fs.before(name)
	}
	do()
}

// leave sets the quota so that free bytes are left.
func (fs *quotaFS) leave(free int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.quota = fs.used() + free
}

func (fs *quotaFS) used() (n int64) {
	for _, size := range fs.sizes {
		n += size
	}
	return n
}

// take gives a file room up to size, and returns how much of that it has.
func (fs *quotaFS) take(name string, size int64) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if more := size - fs.sizes[name]; more > 0 {
		fs.sizes[name] += min(more, max(0, fs.quota-fs.used()))
	}
	return min(size, fs.sizes[name])
}

func (fs *quotaFS) move(old, name string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if name != "" {
		fs.sizes[name] = fs.sizes[old]
	}
	delete(fs.sizes, old)
}

func (fs *quotaFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	used := fs.used()
	return vfs.DiskUsage{AvailBytes: uint64(max(0, fs.quota-used)), TotalBytes: uint64(fs.total), UsedBytes: uint64(used)}, nil
}

func (fs *quotaFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.change(name, func() {
		fs.move(name, "")
		f, err = fs.MemFS.Create(name, c)
	})
	return &quotaFile{File: f, fs: fs, name: name}, err
}

func (fs *quotaFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (f vfs.File, err error) {
	fs.change(name, func() { f, err = fs.MemFS.OpenReadWrite(name, c, o...) })
	return &quotaFile{File: f, fs: fs, name: name}, err
}

func (fs *quotaFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.change(old, func() {
		fs.move(old, name)
		f, err = fs.MemFS.ReuseForWrite(old, name, c)
	})
	return &quotaFile{File: f, fs: fs, name: name}, err
}

func (fs *quotaFS) Rename(old, name string) (err error) {
	fs.change(old, func() {
		fs.move(old, name)
		err = fs.MemFS.Rename(old, name)
	})
	return err
}

func (fs *quotaFS) Remove(name string) (err error) {
	fs.change(name, func() {
		fs.move(name, "")
		err = fs.MemFS.Remove(name)
	})
	return err
}

type quotaFile struct {
	vfs.File
	fs   *quotaFS
	name string
	at   int64
}

func (f *quotaFile) Write(p []byte) (n int, err error) {
	f.fs.change(f.name, func() {
		room := f.fs.take(f.name, f.at+int64(len(p))) - f.at
		n, err = f.File.Write(p[:max(0, room)])
		f.at += int64(n)
	})
	if err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

func (f *quotaFile) WriteAt(p []byte, at int64) (n int, err error) {
	f.fs.change(f.name, func() {
		room := f.fs.take(f.name, at+int64(len(p))) - at
		n, err = f.File.WriteAt(p[:max(0, room)], at)
	})
	if err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

func (f *quotaFile) Preallocate(at, n int64) (err error) {
	f.fs.change(f.name, func() {
		if f.fs.take(f.name, at+n) < at+n {
			err = syscall.ENOSPC
		}
	})
	return err
}
